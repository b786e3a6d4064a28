// The grey of 64 x 40 parts of a picture, which test_in_browser.py evaluates in a browser.
async url => {
  const image = new Image(), canvas = new OffscreenCanvas(64, 40), context = canvas.getContext("2d");
  image.src = url;
  await image.decode();
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, 64, 40);
  const { data } = context.getImageData(0, 0, 64, 40);
  return Array.from({ length: 2560 }, (_, at) => Math.round((data[4 * at] + data[4 * at + 1] + data[4 * at + 2]) / 3));
}
