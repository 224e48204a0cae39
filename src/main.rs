//! The `ringpull` command.
fn main() {}
