//! Labelled images in IDX files, such as those of Debian's package `dataset-fashion-mnist`.
//!
//! An IDX file is a magic number (two zero bytes, the element type, the number of dimensions), the length of
//! each dimension as big-endian u32, then the elements. <http://yann.lecun.com/exdb/mnist/>

use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

use ringpull::{Error, Result};

/// Elements that are unsigned bytes, the only type these files have.
const UNSIGNED_BYTE: u8 = 8;

/// Images of one size, a byte for each pixel, with a label for each image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Height and width of each image.
    pub size: [usize; 2],
    images: Vec<u8>,
    labels: Vec<u8>,
}

impl Dataset {
    /// Reads `<prefix>-images-idx3-ubyte` and `<prefix>-labels-idx1-ubyte` from `folder`, each with or
    /// without `.gz`. The prefixes of MNIST and Fashion-MNIST are `train` and `t10k`.
    pub fn read(folder: &Path, prefix: &str) -> Result<Self> {
        let (images_path, image_shape, images) = read_idx(folder, &format!("{prefix}-images-idx3-ubyte"))?;
        let (labels_path, label_shape, labels) = read_idx(folder, &format!("{prefix}-labels-idx1-ubyte"))?;
        let &[count, height, width] = image_shape.as_slice() else {
            return Err(damaged(&images_path, "does not hold images in three dimensions"));
        };
        if label_shape != [count] {
            return Err(damaged(&labels_path, "does not hold one label for each image"));
        }
        Ok(Dataset { size: [height, width], images, labels })
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns true if there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The pixels of image `index`, row by row, 0 to 255.
    pub fn image(&self, index: usize) -> &[u8] {
        let pixels = self.size[0] * self.size[1];
        &self.images[index * pixels..(index + 1) * pixels]
    }

    /// The label of image `index`.
    pub fn label(&self, index: usize) -> u8 {
        self.labels[index]
    }
}

fn read_idx(folder: &Path, name: &str) -> Result<(PathBuf, Vec<usize>, Vec<u8>)> {
    let packed = folder.join(format!("{name}.gz"));
    let path = if packed.exists() { packed } else { folder.join(name) };
    let bytes = std::fs::read(&path).map_err(|cause| {
        Error::argument(
            format!("cannot read {}: {cause}", path.display()),
            "install Debian's package dataset-fashion-mnist, or name the folder of the IDX files with --data",
        )
    })?;
    let bytes = if path.extension().is_some_and(|extension| extension == "gz") {
        let mut unpacked = Vec::new();
        GzDecoder::new(&bytes[..])
            .read_to_end(&mut unpacked)
            .map_err(|_| damaged(&path, "is not a complete gzip file"))?;
        unpacked
    } else {
        bytes
    };
    let (shape, elements) = split_idx(&bytes).ok_or_else(|| damaged(&path, "is not a complete IDX file of bytes"))?;
    let elements = elements.to_vec();
    Ok((path, shape, elements))
}

/// Shape and elements of an IDX file of bytes.
fn split_idx(bytes: &[u8]) -> Option<(Vec<usize>, &[u8])> {
    let ([0, 0, UNSIGNED_BYTE, dimensions], rest) = bytes.split_first_chunk::<4>()? else { return None };
    let (lengths, elements) = rest.split_at_checked(4 * usize::from(*dimensions))?;
    let shape: Vec<usize> = lengths.as_chunks::<4>().0.iter().map(|len| u32::from_be_bytes(*len) as usize).collect();
    let len = shape.iter().try_fold(1usize, |product, len| product.checked_mul(*len))?;
    (elements.len() == len).then_some((shape, elements))
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::argument(format!("{} {what}", path.display()), "install the data set again; the file is damaged")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idx(shape: &[u32], elements: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, UNSIGNED_BYTE, shape.len() as u8];
        bytes.extend(shape.iter().flat_map(|len| len.to_be_bytes()));
        bytes.extend(elements);
        bytes
    }

    #[test]
    fn images_and_labels_are_read_plain() {
        let folder = tempfile::tempdir().unwrap();
        let pixels: Vec<u8> = (0..12).collect();
        std::fs::write(folder.path().join("train-images-idx3-ubyte"), idx(&[2, 2, 3], &pixels)).unwrap();
        std::fs::write(folder.path().join("train-labels-idx1-ubyte"), idx(&[2], &[7, 1])).unwrap();
        let data = Dataset::read(folder.path(), "train").unwrap();
        assert_eq!((data.len(), data.size, data.image(1), data.label(0)), (2, [2, 3], &pixels[6..], 7));
    }

    #[test]
    fn damaged_files_are_errors_that_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let images = folder.path().join("train-images-idx3-ubyte");
        let cases = [vec![], idx(&[2, 2], &[0; 4]), idx(&[2, 2, 3], &[0; 11]), idx(&[u32::MAX; 3], &[]), vec![0; 40]];
        std::fs::write(folder.path().join("train-labels-idx1-ubyte"), idx(&[2], &[7, 1])).unwrap();
        for bytes in cases {
            std::fs::write(&images, bytes).unwrap();
            let error = Dataset::read(folder.path(), "train").unwrap_err().to_string();
            assert!(error.contains("train-images-idx3-ubyte") && error.contains("hint:"), "{error}");
        }
    }
}
