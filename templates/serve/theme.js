// Before anything is drawn: the theme that the reader chose, if any.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("trialfleet-theme");
  } catch {
    // a browser that keeps nothing: the system's theme then
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
