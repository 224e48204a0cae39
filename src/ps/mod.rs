//! ps
