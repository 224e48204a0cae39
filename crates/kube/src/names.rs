//! Kubernetes' rules for the names of objects, labels and images.

use ringpull_base::{Error, Result};

/// The largest length of a host's name.
pub(super) const LONGEST_LABEL: usize = 63;

/// Returns true if `name` is an RFC 1035 label, as the names of services and pods must be.
pub(super) fn is_label(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(legal) && !name.ends_with('-')
}

/// Returns true if `name` is a name of an object: labels with dots between them. Each label may begin with a
/// digit.
pub(super) fn is_domain(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let label =
        |label: &str| !label.is_empty() && label.chars().all(legal) && !label.starts_with('-') && !label.ends_with('-');
    name.len() <= 253 && name.split('.').all(label)
}

/// Returns true if `value` may be the value of a label.
pub(super) fn is_label_value(value: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&c);
    let outer = |c: char| c.is_ascii_alphanumeric();
    value.len() <= LONGEST_LABEL
        && value.chars().all(legal)
        && (value.is_empty() || value.starts_with(outer) && value.ends_with(outer))
}

/// Returns true if `name` may be the name of a label, an annotation, a taint or a resource.
pub(super) fn is_qualified(name: &str) -> bool {
    let (domain, name) = name.split_once('/').map_or((None, name), |(domain, name)| (Some(domain), name));
    domain.is_none_or(is_domain) && !name.is_empty() && is_label_value(name)
}

pub(super) fn check_label(option: &str, name: &str) -> Result<()> {
    if is_label(name) && name.len() <= LONGEST_LABEL {
        return Ok(());
    }
    let legal = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let better: String = name.to_lowercase().chars().map(legal).take(40).collect();
    let better = better.trim_matches(|c: char| c == '-' || c.is_ascii_digit());
    let better = if better.is_empty() { "train-1" } else { better };
    Err(Error::argument(
        format!("invalid {option} {name:?}: expected lower-case letters, digits and -, at most 63 of them"),
        format!("begin with a letter and use no dot, such as {better}"),
    ))
}

/// Returns an error if no registry can have an image of this name.
pub(super) fn check_image(image: &str) -> Result<()> {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let end = name.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) =
        name[end..].split_once(':').map_or((name, None), |(last, tag)| (&name[..end + last.len()], Some(tag)));
    let legal_tag = |tag: &str| {
        let legal = |c: char| c.is_ascii_alphanumeric() || ['_', '.', '-'].contains(&c);
        !tag.is_empty() && tag.len() <= 128 && tag.chars().all(legal) && !tag.starts_with(['.', '-'])
    };
    let legal_part = |(at, part): (usize, &str)| {
        // The first part may be a registry with a port.
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ['.', '_', '-'].contains(&c);
        !part.is_empty() && part.chars().all(|c| legal(c) || at == 0 && end > 0 && (c == ':' || c.is_ascii_uppercase()))
    };
    if path.split('/').enumerate().all(legal_part) && tag.is_none_or(legal_tag) && digest.is_none_or(is_digest) {
        return Ok(());
    }
    let remedy = if image.chars().any(|c| c.is_ascii_uppercase()) {
        "a repository has lower-case letters only; give --image registry/name:tag"
    } else {
        "give --image registry/name:tag or registry/name@sha256:DIGEST"
    };
    Err(Error::argument(format!("invalid --image {image:?}"), remedy))
}

/// Returns true if the text is a digest that registries and the kubelet accept.
fn is_digest(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    text.strip_prefix("sha256:").is_some_and(|digest| digest.len() == 64 && digest.chars().all(legal))
}
