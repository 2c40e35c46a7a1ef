//! `palisade fence mysql`.

use palisade_fence::mysql::{INSTALL, MySql, Scope, UNINSTALL, protection};

use super::{failed, print};
use crate::outcome::Failure;
use crate::stores::with_secret;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade fence mysql --table orders                   Print it
  palisade fence mysql --table orders | mariadb shop    Install it
  palisade fence mysql --table orders --row id          A mark for each row
  palisade fence mysql --table orders --install mysql://root@127.0.0.1/shop";

/// The options of `palisade fence mysql`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Also protect this table, by triggers
    #[arg(long)]
    table: Option<String>,

    /// The resource whose mark protects the table [default: the table's name]
    #[arg(long, requires = "table", value_name = "RESOURCE")]
    name: Option<String>,

    /// Give each row its own mark, named by this column: NAME/VALUE
    #[arg(long, requires = "table", value_name = "COLUMN")]
    row: Option<String>,

    /// Also print the statements that drop older procedures; --install always runs them
    #[arg(long, conflicts_with = "install")]
    upgrade: bool,

    /// Install it in this database, instead of printing it: mysql://user@host:3306/database,
    /// with the password in MYSQL_PWD or PALISADE_SECRET
    #[arg(long, value_name = "URL")]
    install: Option<String>,
}

/// Prints the SQL of the fence, or installs it.
pub(crate) async fn run(options: &Options) -> Result<(), Failure> {
    let table = options.table.as_ref().map(|table| (table, scope(options, table)));
    let Some(url) = &options.install else {
        let triggers = table.map_or(String::new(), |(table, scope)| format!("\n{}", protection(table, &scope)));
        let before = if options.upgrade { UNINSTALL } else { "" };
        return print(&format!("{before}{INSTALL}{triggers}"));
    };
    let mysql = MySql::install(&with_secret(url)).await.map_err(failed)?;
    if let Some((table, scope)) = table {
        mysql.protect(table, &scope).await.map_err(failed)?;
    }
    print("the fence is installed\n")
}

fn scope(options: &Options, table: &str) -> Scope {
    let name = options.name.clone().unwrap_or_else(|| table.to_owned());
    match options.row.clone() {
        None => Scope::Table(name),
        Some(column) => Scope::Row { name, column },
    }
}
