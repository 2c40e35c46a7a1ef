//! What could spoil the locks in a PostgreSQL.

use palisade::engine::postgres::{Config, Survey, survey};

use super::finding::Finding;

/// The oldest version that the schema is written for.
const OLDEST: i32 = 130_000;

/// Looks at the PostgreSQL that a URL means.
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
        match found.version_number >= OLDEST {
            true => Finding::ok("version", format!("PostgreSQL {}", found.version)),
            false => Finding::failure(
                "version",
                format!("PostgreSQL {} is older than 13", found.version),
                "upgrade the server".to_owned(),
            ),
        },
        match found.is_standby {
            false => Finding::ok("primary", "it is a primary"),
            true => Finding::failure(
                "primary",
                "it is a standby, which can grant nothing",
                "connect to the primary".to_owned(),
            ),
        },
        match found.fsync {
            true => Finding::ok("fsync", "what is committed is on the disk"),
            false => Finding::failure(
                "fsync",
                "fsync is off: a crash of the host takes grants and tokens back",
                "set fsync = on in postgresql.conf".to_owned(),
            ),
        },
        match found.full_page_writes {
            true => Finding::ok("pages", "a power cut in the midst of a page does no harm"),
            false => Finding::warning(
                "pages",
                "full_page_writes is off: a power cut in the midst of a page can destroy the tables",
                "set full_page_writes = on, unless the file system writes whole pages",
            ),
        },
    ];
    findings.push(match found.synchronous_commit.as_str() {
        "off" => Finding::warning(
            "commit",
            "synchronous_commit is off: grants and keep-alives are durable all the same, but what your own transactions do \
             under a lock may be lost in a crash",
            "set synchronous_commit = on",
        ),
        "local" if !found.synchronous_standbys.is_empty() => Finding::warning(
            "commit",
            "synchronous_commit is local: a commit does not wait for the standbys, so a promoted one can take tokens back",
            "set synchronous_commit = on",
        ),
        other => Finding::ok("commit", format!("synchronous_commit is {other}")),
    });
    if found.standbys.is_some_and(|standbys| standbys > 0) && found.synchronous_standbys.is_empty() {
        findings.push(Finding::warning(
            "standbys",
            "standbys follow it, and no commit waits for them: one that is promoted can take tokens back",
            "set synchronous_standby_names, or after a promotion: SELECT palisade.raise_tokens(above)",
        ));
    }
    findings.push(match found.is_pooled {
        false => Finding::ok("pooler", "nothing is in between that gives each transaction another connection"),
        true => Finding::warning(
            "pooler",
            "a pooler in transaction mode is in between: waiters poll, and nothing can be watched",
            "connect to PostgreSQL itself, or use the pooler in session mode",
        ),
    });
    // A copy is reported by the attempt to connect, with its own way out.
    let is_copy = |contradiction: &&String| contradiction.starts_with("these locks are a copy");
    let contradictions: Vec<_> = found.contradictions.iter().filter(|found| !is_copy(found)).cloned().collect();
    if !contradictions.is_empty() {
        findings.push(Finding::failure(
            "contradictions",
            format!("the tables in the schema palisade contradict each other: {}", contradictions.join("; ")),
            "stop the clients that use these locks, and report it with the output of SELECT palisade.check()"
                .to_owned(),
        ));
    }
    findings.push(match (found.schema, found.may_install) {
        (Some(version), _) => Finding::ok("schema", format!("palisade, version {version}, for role {}", found.role)),
        (None, true) => Finding::ok("schema", format!("not installed yet; role {} may do it", found.role)),
        (None, false) => Finding::failure(
            "schema",
            format!("not installed, and role {} may not do it", found.role),
            "have it installed: palisade engine postgres schema | psql".to_owned(),
        ),
    });
    findings
}
