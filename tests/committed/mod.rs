//! Files of the repository that are generated from the sources: pages of the book and drawings.
//!
//! A test makes the text and [`keep`] compares it with the file. `RENEW=1 cargo test ...` writes the file
//! instead, so that a change of the sources renews it in the same commit.

use std::path::Path;

/// Panics if the file at this path of the repository has another text. With `RENEW=1` writes the file
/// instead.
pub(crate) fn keep(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("tests/committed").is_dir());
    let file = file.expect("the repository is above every crate").join(path);
    if std::env::var_os("RENEW").is_some() {
        std::fs::create_dir_all(file.parent().expect("a path with a folder")).expect("the folder can be made");
        std::fs::write(&file, text).expect("the file can be written");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = committed.lines().zip(text.lines()).find(|(had, made)| had != made);
    assert!(
        committed == text,
        "{path} does not follow from the sources any more; the first line that differs: {differs:?}\n  hint: run this test with RENEW=1, look at the difference, and commit it"
    );
}
