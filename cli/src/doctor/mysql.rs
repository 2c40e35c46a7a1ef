//! Checks of MySQL and MariaDB: version, durability, tables.

use palisade::engine::mysql::{Config, Survey, survey};

use super::finding::Finding;

/// Examines the server of a URL.
pub(super) async fn findings(rest: &str) -> Vec<Finding> {
    // The attempt to connect has already reported what is wrong.
    let Ok(config) = Config::parse(rest) else { return Vec::new() };
    match survey(&config).await {
        Ok(survey) => judge(&survey),
        Err(_) => Vec::new(),
    }
}

fn judge(survey: &Survey) -> Vec<Finding> {
    let mut findings = vec![
        judge_version(&survey.version),
        match survey.is_read_only {
            false => Finding::ok("primary", "the server accepts writes"),
            true => Finding::failure(
                "primary",
                "read_only is on, as on a replica: the server can grant no locks",
                "connect to the primary".to_owned(),
            ),
        },
        match survey.flush_log {
            1 => Finding::ok("commit", "every commit is flushed to disk"),
            other => Finding::warning(
                "commit",
                format!(
                    "innodb_flush_log_at_trx_commit is {other}: a crash loses grants and tokens of the last second"
                ),
                "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration",
            ),
        },
    ];
    match survey.sync_binlog {
        None | Some(1) => {}
        Some(other) => findings.push(Finding::warning(
            "binlog",
            format!(
                "sync_binlog is {other}: after a power cut the server rolls back the transactions that are missing in its \
                 binary log, with their grants, tokens and keep-alives"
            ),
            "SET GLOBAL sync_binlog = 1, and in the server's configuration",
        )),
    }
    if survey.binlog_format.as_deref() == Some("STATEMENT") {
        findings.push(Finding::failure(
            "binlog-format",
            "binlog_format is STATEMENT, with which READ COMMITTED cannot be used",
            "SET GLOBAL binlog_format = 'ROW', or MIXED".to_owned(),
        ));
    }
    if !survey.foreign_tables.is_empty() {
        findings.push(Finding::failure(
            "tables",
            format!("not in InnoDB, and so without transactions: {}", survey.foreign_tables.join(", ")),
            "ALTER TABLE … ENGINE = InnoDB for each of them".to_owned(),
        ));
    }
    if !survey.contradictions.is_empty() {
        findings.push(Finding::failure(
            "contradictions",
            format!("the tables palisade_… contradict each other: {}", survey.contradictions.join("; ")),
            "stop the clients that use these locks, and report it with the output of CALL palisade_check()"
                .to_owned(),
        ));
    }
    findings.push(match survey.installed {
        Some(version) => Finding::ok("schema", format!("palisade_…, version {version}, for user {}", survey.user)),
        None => Finding::failure(
            "schema",
            format!("not installed, or not for user {}", survey.user),
            "have it installed: palisade engine mysql schema | mysql database".to_owned(),
        ),
    });
    findings
}

/// Checks the version. The procedures need SKIP LOCKED: MariaDB 10.6, MySQL 8.
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

    /// Returns the first warning or failure.
    fn first_problem(survey: &Survey) -> Option<(&'static str, Status)> {
        let findings = judge(survey);
        findings.iter().find(|finding| finding.status != Status::Ok).map(|finding| (finding.check, finding.status))
    }

    #[test]
    fn a_durable_server_has_no_warnings() {
        assert_eq!(first_problem(&good()), None);
        assert_eq!(first_problem(&Survey { sync_binlog: None, binlog_format: None, ..good() }), None);
    }

    #[test]
    fn doctor_reports_settings_that_lose_grants() {
        for (survey, expected) in [
            (Survey { flush_log: 2, ..good() }, ("commit", Status::Warning)),
            (Survey { flush_log: 0, ..good() }, ("commit", Status::Warning)),
            (Survey { sync_binlog: Some(0), ..good() }, ("binlog", Status::Warning)),
            (Survey { binlog_format: Some("STATEMENT".to_owned()), ..good() }, ("binlog-format", Status::Failure)),
            (Survey { is_read_only: true, ..good() }, ("primary", Status::Failure)),
            (Survey { foreign_tables: vec!["palisade_lock".to_owned()], ..good() }, ("tables", Status::Failure)),
            (Survey { installed: None, ..good() }, ("schema", Status::Failure)),
            (Survey { contradictions: vec!["a claim".to_owned()], ..good() }, ("contradictions", Status::Failure)),
        ] {
            assert_eq!(first_problem(&survey), Some(expected), "{survey:?}");
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
