// The explorer as a widget of its own. mirage_nb/viz/explorer.js stands in front of this text.

function render({ model, el }) {
  const root = document.createElement("div");
  root.className = "mir mir-view mir-live";
  root.innerHTML = model.get("content");
  el.append(root);
  const end = attachExplorers(root);
  root.querySelectorAll("input,button,summary,[tabindex]")
    .forEach((node) => { node.dataset.lmSuppressShortcuts = "true"; }); // keys pressed here are not the notebook's
  return end;
}

export default { render };
