"""Inert stand-ins for the renderer, so that ManiSkill runs without a GPU and without Vulkan.

Also a program: `python rendering.py MODULE …` runs a module of ManiSkill's own, such as its replay tool, that way.
"""

import runpy
import sys
import warnings

NAMES = ("RenderMaterial", "RenderTexture2D")


class Inert:
    """Accepts what a material or a texture accepts, and does nothing with it."""

    def __init__(self, *_arguments, **properties):
        self.__dict__.update(properties)

    def __getattr__(self, name: str):
        if name.startswith("set_"):
            return lambda *_arguments, **_properties: None
        raise AttributeError(name)


def without_renderer() -> None:
    """Puts the stand-ins in place; to be called before an environment is made.

    Scenes are built with materials even where nothing is drawn, and each asks for a rendering device.
    """
    warnings.filterwarnings("ignore", message="Failed to find system libvulkan")
    import sapien.pysapien.render
    import sapien.render
    import sapien.wrapper.renderer
    import sapien.wrapper.urdf_loader

    wrapper = sapien.wrapper
    for module in (sapien.render, sapien.pysapien.render, wrapper.urdf_loader, wrapper.renderer):
        for name in NAMES:
            if hasattr(module, name):
                setattr(module, name, Inert)


if __name__ == "__main__":
    without_renderer()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
