//! `palisade fence postgres` and `palisade fence check`, as a shell sees it: the real binary, and a real PostgreSQL.

use crate::common::bounded::Bounded;
use crate::sandbox::Sandbox;
use crate::servers::{Server, try_psql};

#[test]
fn help_has_examples() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!("fence-postgres-help", sandbox.stdout(&["fence", "postgres", "--help"]));
    insta::assert_snapshot!("fence-check-help", sandbox.stdout(&["fence", "check", "--help"]));
}

#[test]
fn bad_options_and_unreachable_servers_are_refused() {
    let sandbox = Sandbox::new();
    let misuse = |args: &[&str]| sandbox.stderr(64, args);
    assert!(misuse(&["fence", "postgres", "--protect", "orders"]).contains("expected TABLE=RESOURCE"));
    assert!(misuse(&["fence", "postgres", "--install"]).contains("--install <URL>"));
    assert!(misuse(&["fence", "check", "ftp://x", "orders"]).contains("this store is not supported"));
    assert!(misuse(&["fence", "check", "postgres://x/y", ""]).contains("must not be empty"));
    assert!(misuse(&["fence", "check", "postgres://x/y", &"x".repeat(513)]).contains("at most 512 bytes"));
    assert!(misuse(&["fence", "check", "postgres://127.0.0.1:1/y"]).contains("RESOURCE is missing"));
    let no_file = "postgres://x/y?sslmode=verify-full&sslrootcert=/nowhere/ca.pem";
    assert!(misuse(&["fence", "check", no_file, "orders"]).contains("/nowhere/ca.pem cannot be used"));
    assert!(misuse(&["fence", "check", "postgres://x/y", "orders", "--token", "0"]).contains("token"));
    let away = sandbox.stderr(69, &["fence", "check", "postgres://me@127.0.0.1:1/y", "orders"]);
    assert!(away.contains("refused"), "{away}");
}

#[test]
fn the_fence_is_printed_installed_and_checked() {
    let (sandbox, postgres) = (Sandbox::new(), Server::postgres(&[]));
    let url = postgres.url.as_str();
    let engine = ["--url", "palisade://locks:7420"];
    let check = |args: &[&str]| sandbox.run(&[&engine[..], &["fence", "check", url, "orders"], args].concat());
    let not_there = sandbox.stderr(64, &["fence", "check", url, "orders"]);
    assert!(not_there.contains("palisade fence postgres --install"), "{not_there}");

    postgres.psql("CREATE TABLE orders (id int PRIMARY KEY, total int); CREATE ROLE app");
    let install = ["fence", "postgres", "--install", url, "--protect", "orders=orders", "--grant", "app"];
    for _ in 0..2 {
        insta::assert_snapshot!("installed", sandbox.stdout(&install));
    }
    let printed = sandbox.stdout(&["fence", "postgres", "--protect", "orders=orders", "--grant", "app"]);
    postgres.psql(&printed);
    insta::assert_snapshot!("printed-last", printed.split("COMMIT;\n").last().expect("it has an end"));

    insta::assert_snapshot!("never-sealed", check(&["--token", "33"]).out);
    postgres.psql("SET ROLE app; SELECT palisade_fence.seal('orders', 34)");
    insta::assert_snapshot!("sealed", check(&[]).out);
    assert_eq!(check(&["--token", "34"]).code, Some(0));
    let stale = check(&["--token", "33"]);
    assert_eq!(stale.code, Some(76));
    insta::assert_snapshot!("stale", stale.out);
    insta::assert_snapshot!("stale-json", check(&["--token", "33", "--json"]).out);
    insta::assert_snapshot!("gap", check(&["--token", "34", "--seq", "7"]).out);
    assert!(try_psql(url, "INSERT INTO orders VALUES (1, 1)").is_none(), "it is protected");

    // A resource without a mark of the whole, in a database where rows have marks.
    postgres.psql("CREATE TABLE jobs (id int); SELECT palisade_fence.protect_rows('jobs')");
    let whole = "Nothing has sealed jobs/7 as a whole yet.\n\
                 Each row of public.jobs has its own mark: SELECT palisade_token FROM public.jobs WHERE …\n";
    assert_eq!(sandbox.run(&["fence", "check", url, "jobs/7"]).out, whole);
    let rows = sandbox.run(&["fence", "check", url, "jobs/7", "--token", "33"]).out;
    let verdict = "A write under token 33 to one of these rows is checked against the mark of that row.\n";
    assert!(rows.starts_with(&format!("{whole}{verdict}")), "{rows}");
}

#[test]
fn an_installation_that_fails_halfway_says_how_far_it_got() {
    let (sandbox, postgres) = (Sandbox::new(), Server::postgres(&[]));
    let install = ["fence", "postgres", "--install", postgres.url.as_str()];
    for (more, failed) in [
        (["--protect", "nosuch=x"], "cannot protect nosuch: "),
        (["--grant", "nosuch"], "cannot let nosuch seal: PostgreSQL: role \"nosuch\" does not exist. "),
    ] {
        let output = sandbox.run(&[&install[..], &more].concat());
        assert_eq!((output.code, output.out.as_str()), (Some(64), "palisade_fence is installed\n"), "{}", output.err);
        assert!(output.err.contains(failed) && output.err.contains("palisade_fence is installed"), "{}", output.err);
        assert!(!output.err.contains("nothing has changed"), "{}", output.err);
    }
}

#[test]
fn logins_take_the_password_from_the_environment_and_name_the_remedy() {
    let hba = "host all app 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
    let prepare = |data: &std::path::Path| std::fs::write(data.join("pg_hba.conf"), hba).expect("it can be written");
    let (sandbox, postgres) = (Sandbox::new(), Server::postgres_with(&[], prepare));
    postgres.psql("CREATE ROLE app LOGIN PASSWORD 'xy/zzy'; CREATE TABLE orders (id int)");
    sandbox.stdout(&[
        "fence",
        "postgres",
        "--install",
        &postgres.url,
        "--protect",
        "orders=orders",
        "--grant",
        "app",
    ]);
    let url = |user: &str| format!("postgres://{user}127.0.0.1:{}/postgres", postgres.port);
    let run = |variables: &[(&str, &str)], args: &[&str]| {
        sandbox.output(&sandbox.command(args).envs(variables.iter().copied()).finish())
    };

    let check = ["fence", "check", &url("app@"), "orders"];
    for variable in ["PALISADE_SECRET", "PGPASSWORD"] {
        let output = run(&[(variable, "xy/zzy")], &check);
        assert!(output.out.contains("Nothing has sealed orders"), "{output:?}");
    }
    let output = run(&[("PGPASSWORD", "xy/zzy"), ("PGUSER", "app")], &["fence", "check", &url(""), "orders"]);
    assert!(output.out.contains("Nothing has sealed orders"), "{output:?}");
    let advisory = format!("{}?mode=advisory", url("app@"));
    for args in [&check[..], &["--url", &advisory, "run", "a", "--", "true"]] {
        let output = run(&[], args);
        assert!(
            output.code == Some(69) && output.err.contains("requires a password; set the environment"),
            "{output:?}"
        );
    }

    // This role may not create the schema, which advisory locks do not need.
    let output = run(&[("PGPASSWORD", "xy/zzy")], &["doctor", &advisory]);
    assert!(output.out.contains("pooler") && !output.out.contains("schema"), "{output:?}");
    // As libpq: the user is that of the operating system, and the database has its name.
    let output =
        run(&[("USER", "other")], &["--url", url("").trim_end_matches("/postgres"), "run", "a", "--", "true"]);
    let user = String::from_utf8(sandbox.program("id").arg("-un").finish().stdout);
    assert!(output.err.contains(&format!("\"{}\"", user.expect("UTF-8").trim())), "{output:?}");
    let output = run(&[], &["--url", &url("nosuch@"), "run", "a", "--", "true"]);
    assert!(output.err.contains("\"nosuch\" does not exist") && !output.err.contains("pg_hba"), "{output:?}");
}
