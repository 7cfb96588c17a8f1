// A click on a board, as shares of its side from the upper left corner.
element.addEventListener('click', event => {
    const svg = event.target.closest('svg');
    if (!svg) return;
    const box = svg.getBoundingClientRect();
    trigger('click', {
        x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.width
    });
});
