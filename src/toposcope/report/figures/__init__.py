"""The figures: Matplotlib, sized for a page and a phone, legible in grey and to the colour-blind."""
