// For readers with a keyboard or a screen reader: what scrolls can be reached, and a signature is no list of definitions.
document.addEventListener("DOMContentLoaded", () => {
  for (const part of document.querySelectorAll("article pre, article .table-wrapper, article p:has(> img:only-child)")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  }
  for (const part of document.querySelectorAll("dt.sig dl, dt.sig dd")) part.setAttribute("role", "presentation");
});
