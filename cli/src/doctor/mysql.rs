//! What could spoil the locks in a MySQL or MariaDB.

use palisade::engine::mysql::{Config, Survey, survey};

use super::finding::Finding;

/// Looks at the server that a URL means.
pub(super) async fn findings(rest: &str) -> Vec<Finding> {
    // The attempt to connect has already reported what is wrong.
    let Ok(config) = Config::parse(rest) else { return Vec::new() };
    match survey(&config).await {
        Ok(found) => judge(&found),
        Err(_) => Vec::new(),
    }
}

fn judge(found: &Survey) -> Vec<Finding> {
    let mut findings = vec![
        judge_version(&found.version),
        match found.is_read_only {
            false => Finding::ok("primary", "it can be written"),
            true => Finding::failure(
                "primary",
                "read_only is on, as on a replica: it can grant nothing",
                "connect to the primary".to_owned(),
            ),
        },
        match found.flush_log {
            1 => Finding::ok("commit", "what is committed is on the disk"),
            other => Finding::warning(
                "commit",
                format!(
                    "innodb_flush_log_at_trx_commit is {other}: a crash takes back grants and tokens of the last second"
                ),
                "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration",
            ),
        },
    ];
    match found.sync_binlog {
        None | Some(1) => {}
        Some(other) => findings.push(Finding::warning(
            "binlog",
            format!(
                "sync_binlog is {other}: after a power cut the server takes back what is not in its binary log, grants, \
                 tokens and keep-alives too"
            ),
            "SET GLOBAL sync_binlog = 1, and in the server's configuration",
        )),
    }
    if found.binlog_format.as_deref() == Some("STATEMENT") {
        findings.push(Finding::failure(
            "binlog-format",
            "binlog_format is STATEMENT, with which READ COMMITTED cannot be used",
            "SET GLOBAL binlog_format = 'ROW', or MIXED".to_owned(),
        ));
    }
    if !found.foreign_tables.is_empty() {
        findings.push(Finding::failure(
            "tables",
            format!("not in InnoDB, and so without transactions: {}", found.foreign_tables.join(", ")),
            "ALTER TABLE … ENGINE = InnoDB for each of them".to_owned(),
        ));
    }
    if !found.contradictions.is_empty() {
        findings.push(Finding::failure(
            "contradictions",
            format!("the tables palisade_… contradict themselves: {}", found.contradictions.join("; ")),
            "stop the clients that use these locks, and report it with the output of CALL palisade_check()"
                .to_owned(),
        ));
    }
    findings.push(match found.installed {
        Some(version) => Finding::ok("schema", format!("palisade_…, version {version}, for user {}", found.user)),
        None => Finding::failure(
            "schema",
            format!("not installed, or not for user {}", found.user),
            "have it installed: palisade engine mysql schema | mysql database".to_owned(),
        ),
    });
    findings
}

/// What is skipped while it is locked can be skipped since MariaDB 10.6 and MySQL 8.
fn judge_version(version: &str) -> Finding {
    let is_mariadb = version.contains("MariaDB");
    let mut numbers = version.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (product, oldest) = if is_mariadb { ("MariaDB", (10, 6)) } else { ("MySQL", (8, 0)) };
    let version = version.split("-MariaDB").next().unwrap_or(version);
    match number >= oldest {
        true => Finding::ok("version", format!("{product} {version}")),
        false => Finding::failure(
            "version",
            format!("{product} {version} is older than {}.{}", oldest.0, oldest.1),
            "upgrade the server".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    fn good() -> Survey {
        Survey {
            version: "10.11.14-MariaDB-0+deb12u2".to_owned(),
            is_read_only: false,
            flush_log: 1,
            sync_binlog: Some(1),
            binlog_format: Some("MIXED".to_owned()),
            foreign_tables: Vec::new(),
            installed: Some(3),
            contradictions: Vec::new(),
            user: "app@%".to_owned(),
        }
    }

    /// The first thing that is not as it should be.
    fn worst(found: &Survey) -> Option<(&'static str, Status)> {
        let findings = judge(found);
        findings.iter().find(|finding| finding.status != Status::Ok).map(|finding| (finding.check, finding.status))
    }

    #[test]
    fn a_server_that_keeps_everything_is_fine() {
        assert_eq!(worst(&good()), None);
        assert_eq!(worst(&Survey { sync_binlog: None, binlog_format: None, ..good() }), None);
    }

    #[test]
    fn doctor_reports_settings_that_lose_grants() {
        for (found, wanted) in [
            (Survey { flush_log: 2, ..good() }, ("commit", Status::Warning)),
            (Survey { flush_log: 0, ..good() }, ("commit", Status::Warning)),
            (Survey { sync_binlog: Some(0), ..good() }, ("binlog", Status::Warning)),
            (Survey { binlog_format: Some("STATEMENT".to_owned()), ..good() }, ("binlog-format", Status::Failure)),
            (Survey { is_read_only: true, ..good() }, ("primary", Status::Failure)),
            (Survey { foreign_tables: vec!["palisade_lock".to_owned()], ..good() }, ("tables", Status::Failure)),
            (Survey { installed: None, ..good() }, ("schema", Status::Failure)),
            (Survey { contradictions: vec!["a claim".to_owned()], ..good() }, ("contradictions", Status::Failure)),
        ] {
            assert_eq!(worst(&found), Some(wanted), "{found:?}");
        }
    }

    #[test]
    fn mysql_and_mariadb_versions_are_distinguished() {
        let status = |version| judge_version(version).status;
        for version in ["10.11.14-MariaDB-0+deb12u2", "10.6.1-MariaDB", "11.4.2-MariaDB", "8.0.40", "8.4.3", "9.1.0"]
        {
            assert_eq!(status(version), Status::Ok, "{version}");
        }
        for version in ["10.5.9-MariaDB", "5.7.44", "5.5.5-10.3.1-MariaDB", "what"] {
            assert_eq!(status(version), Status::Failure, "{version}");
        }
    }
}
