// Sets the theme that the reader chose, before the browser draws the live page.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("trialfleet-theme");
  } catch {
    // the browser stores nothing, so the system's theme applies
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
