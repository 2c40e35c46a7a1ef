//! Problems with the protection of tables.

/// A problem with the protection of a table: writes may not be fenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The table, as its database calls it.
    pub table: String,
    /// The resource whose mark it is under; `None` where every row has a mark.
    pub resource: Option<String>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}
