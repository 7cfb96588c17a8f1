// The report's frame is as high as the report, so the page has one scroll bar.
const fit = () => {
    const frame = element.querySelector('iframe');
    if (!frame) return;
    const follow = () => {
        const inside = frame.contentDocument;
        if (!inside?.body) return;
        new ResizeObserver(() => {
            frame.style.height = `${inside.body.offsetHeight + 4}px`;
        }).observe(inside.body);
        inside.addEventListener('click', event => {  // a srcdoc has no address of its own for #links
            const link = event.target.closest('a[href^="#"]');
            if (!link) return;
            event.preventDefault();
            inside.getElementById(link.hash.slice(1))?.scrollIntoView();
        });
    };
    frame.addEventListener('load', follow);
    follow();
};
fit();
watch('value', fit);
