//! communicator
