// On a phone, the answer is above what was pressed for it: it is brought into view.
watch('value', () => {
    if (innerWidth > 700 || !element.innerText.trim()) return;
    const { top, bottom, height } = element.getBoundingClientRect();
    if (top >= 0 && bottom <= innerHeight) return;
    element.scrollIntoView({ block: height > innerHeight ? 'start' : 'nearest' });
});
