//! The rules, which `rules.json` holds: for each its name, its level, the fault that it finds, and the fix if
//! it is always the same. The book's page of rules is made from them.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// The level of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LintLevel {
    /// The job would fail, or would not do what its manifest says.
    Error,
    /// The job works, but wastes something or is probably not what its author meant.
    Warning,
    /// The outcome depends on the image or on the cluster, which the linter does not know.
    Note,
}

/// A rule.
#[derive(Debug, Deserialize)]
pub struct LintRule {
    /// Its name, which is also its anchor in the book.
    pub name: &'static str,
    /// Its level.
    pub level: LintLevel,
    /// The fault that the rule finds.
    pub finds: &'static str,
    /// The change that mends it, if it is the same for all that the rule finds.
    #[serde(default)]
    pub(super) fix: &'static str,
}

/// Every rule, by the subject of its file.
pub static RULES: LazyLock<Vec<LintRule>> =
    LazyLock::new(|| serde_json::from_str(include_str!("rules.json")).expect("rules.json is valid"));

/// The rule of this name.
pub fn rule_of(name: &str) -> Option<&'static LintRule> {
    RULES.iter().find(|rule| rule.name == name)
}
