package command

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

func TestLs(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	owner := p.serve("m="+path, "z="+path)
	lines := strings.Split(p.must("ls"), "\n")
	require.Equal(t, []string{"NAME", "VERSION", "BYTES", "TENSORS", "HOLDERS", "AGE", "SOURCE"}, strings.Fields(lines[0]))
	require.Regexp(t, `^m +1 +2\.\d KiB +6 +0 +\S+ +`+path+`$`, lines[1])
	require.Regexp(t, `^z +1 `, lines[2])

	h := attach(t, p.socket(), "m")
	p.must("publish", "m="+path)
	require.Regexp(t, `(?m)^m +2 .* current +`+path+`\nm +1 +2\.\d KiB +6 +1 +\S+ +superseded `, p.must("ls", "-a", "m"))
	require.NotContains(t, p.must("ls", "m"), "\nz")
	p.must("withdraw", "m")
	require.Regexp(t, `(?m)^m +1 .* withdrawn `, p.must("ls", "-a"))
	require.NotContains(t, p.must("ls"), "\nm ")

	var models []endpoint.ModelInfo
	require.NoError(t, json.Unmarshal([]byte(p.must("ls", "--json")), &models))
	require.Len(t, models, 2)
	require.Zero(t, models[0].Current)
	require.Len(t, models[0].Versions[0].Holders, 1)
	require.EqualValues(t, 1, h.Version())
	for _, command := range [][]string{{"ls"}, {"rollback"}, {"withdraw"}, {"inspect"}, {"get", "-o", "-"}} {
		require.Regexp(t, `"nope".*: .*not found.*; it has m`, p.fails(cli.ExitFailure, append(command, "nope")...), command)
	}

	owner.signal(syscall.SIGTERM)
	owner.exit()
	text := p.fails(cli.ExitFailure, "ls")
	require.Contains(t, text, "no owner is serving on "+p.socket())
	require.Contains(t, text, "sharedtensor serve")
}

// Commands find an owner on the socket of another device if it is the only one.
func TestDialOnlyOwner(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	model := p.model("m.safetensors", 1)
	third, fifth := p.file("shared-tensor-3.sock"), p.file("shared-tensor-5.sock")
	p.serve("m="+model, "--socket", third)
	gone := p.serve("--socket", fifth)
	gone.signal(syscall.SIGKILL)
	gone.exit()
	require.FileExists(t, fifth, "the owner has stopped")
	p.serve("--socket", p.file("shared-tensor-x.sock")) // not the socket of a device either
	note := "no owner listens on " + p.socket() + "; using " + third + ", the only other owner\n"
	for _, args := range [][]string{{"ls"}, {"ls", "--wait"}, {"ls", "--json"}} {
		r := p.run(args...)
		require.Equal(t, cli.ExitOK, r.code, r.stderr)
		require.Equal(t, note, r.stderr)
		require.Contains(t, r.stdout, "m")
		require.NotContains(t, r.stdout, "nobody")
	}
	require.Contains(t, p.must("publish", "n="+model), "published n version 1")
	require.Regexp(t, `(?m)^OK +owner +answers in `, p.run("doctor").stdout)
	r := p.run("__complete", "get", "")
	require.Contains(t, r.stdout, "m\tversion 1")
	require.NotContains(t, r.stderr, "nobody serves")

	p.serve("--socket", fifth)
	require.Contains(t, p.fails(cli.ExitFailure, "ls"), "try --socket "+third+" or --socket "+fifth)
	require.Contains(t, p.fails(cli.ExitFailure, "ls", "--socket", p.socket()), "no owner is serving")
	p.serve()
	require.NotContains(t, p.run("ls").stderr, "the only owner")
}

func TestWaitForOwner(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, limit := range []string{"50ms", "1ns"} { // the second one ends before the socket is probed
		require.Contains(t, p.fails(cli.ExitFailure, "ls", "--wait", "--timeout", limit), "did not answer within "+limit)
	}
	early := p.start(p.command("watch", "-n", "1", "--wait"))
	p.serve("m=" + p.model("m.safetensors", 1))
	require.Contains(t, early.line(), "published m version 1")
	require.Equal(t, cli.ExitOK, early.exit())
}

// A stopped owner is named, so that it can be found.
func TestStoppedOwner(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	owner := p.serve()
	owner.signal(syscall.SIGSTOP)
	defer owner.signal(syscall.SIGCONT)
	require.Contains(t, p.fails(cli.ExitFailure, "ls"),
		fmt.Sprintf("process %d listens, but does not answer", owner.cmd.Process.Pid))
}

func TestPublish(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	first, second := p.model("a.safetensors", 1), p.model("b.safetensors", 2)
	require.Contains(t, p.fails(cli.ExitFailure, "publish", "m="+first), "no owner is serving")
	p.serve("m=" + first)
	r := p.run("publish", "m="+second, "n="+second)
	require.Equal(t, cli.ExitOK, r.code, r.stderr)
	require.Equal(t, "published m version 2 from "+second+"\npublished n version 1 from "+second+"\n", r.stdout)
	require.Regexp(t, `^loaded m: .*\nloaded n: .*\n$`, r.stderr)
	require.Equal(t, digests(t, second), handleDigests(t, attach(t, p.socket(), "m")), "memory outlives the publisher")
	require.Contains(t, p.fails(cli.ExitFailure, "publish", "m="+p.file("none")), "no such file")

	r = p.run("withdraw", "n", "x", "m")
	require.Equal(t, cli.ExitFailure, r.code)
	require.Equal(t, "withdrew n\nwithdrew m\n", r.stdout)
	require.Contains(t, r.stderr, `"x": owner: not found`)
	require.Equal(t, 1, strings.Count(r.stderr, "\n"))
}

// Two commands publish the parts of one version. The first one waits for the second one.
func TestPublishParts(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	model := p.model("a.safetensors", 1)
	p.serve()
	for _, flags := range [][]string{{"--part", "2/2"}, {"--part", "-1/2"}, {"--part", "1"}, {"--part", "x/y"}, {"--part-key", "k"}, {"--part", "0/2", "n=" + model}} {
		require.Contains(t, p.fails(cli.ExitUsage, append([]string{"publish", "m=" + model}, flags...)...), "--part", flags)
	}
	first := p.start(p.command("publish", "m="+model, "--part", "0/2", "--part-key", "step 7"))
	require.Eventually(t, func() bool { return strings.Contains(p.must("ls"), "incomplete: has 0 of 2 parts, key step 7") }, time.Minute, time.Millisecond)
	require.Contains(t, p.run("publish", "m="+model, "--part", "0/2", "--part-key", "step 7").stderr, "published already")
	require.Equal(t, "published m version 1 from "+model+"\n", p.must("publish", "m="+model, "--part", "1/2", "--part-key", "step 7"))
	require.Equal(t, cli.ExitOK, first.exit())
	require.Contains(t, p.must("ls"), "current, 2 parts")
	require.Contains(t, p.run("publish", "m="+model).stderr, "made of 2 parts")
}

func TestRollback(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	first, second := p.model("a.safetensors", 1), p.model("b.safetensors", 2)
	p.serve("--retain", "2", "--retain-age", "1h", "--retain-bytes", "1GiB", "m="+first)
	require.Contains(t, p.fails(cli.ExitFailure, "rollback", "m"), "no superseded version")
	p.must("publish", "m="+second)
	require.Equal(t, "published m version 3 by rollback\n", p.must("rollback", "m"))
	require.Equal(t, digests(t, first), handleDigests(t, attach(t, p.socket(), "m")))
	require.JSONEq(t, `{"name": "m", "version": 4}`, p.must("rollback", "m", "2", "--json"))
	require.Equal(t, digests(t, second), handleDigests(t, attach(t, p.socket(), "m")))
	require.Contains(t, p.fails(cli.ExitFailure, "rollback", "m", "77"), "no such version")
	require.Contains(t, p.fails(cli.ExitUsage, "rollback"), "NAME is missing")
	require.Contains(t, p.fails(cli.ExitUsage, "rollback", "m", "x"), "number of one version")
	for _, bad := range []string{"--retain=-1", "--retain-age=-1s", "--retain-bytes=many"} {
		require.Contains(t, p.fails(cli.ExitUsage, "serve", bad), strings.SplitN(bad, "=", 2)[0])
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	owner := p.serve("m=" + path)
	watcher := p.start(p.command("watch", "m", "later"))
	all := p.start(p.command("watch", "--json", "-n", "3"))
	require.Regexp(t, `^\d\d:\d\d:\d\d\.\d{3} published m version 1$`, watcher.line())
	next := func() (e watchEvent) {
		line := all.line()
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		require.WithinDuration(t, time.Now(), e.Time, time.Minute)
		require.Len(t, e.Owner, 32)
		return e
	}
	e := next()
	require.Equal(t, "published m 1", strings.Join([]string{e.Event, e.Name, "1"}, " "))
	p.must("publish", "other="+path)
	require.Equal(t, "other", next().Name)
	p.must("publish", "later="+path)
	require.Contains(t, watcher.line(), "published later version 1")
	require.Equal(t, "later", next().Name)
	require.Equal(t, cli.ExitOK, all.exit())
	p.must("withdraw", "m")
	require.Contains(t, watcher.line(), "withdrawn m version 1")

	owner.signal(syscall.SIGKILL)
	owner.exit()
	require.Contains(t, watcher.line(), "owner lost")
	p.serve("m=" + path)
	require.Contains(t, watcher.line(), "owner back")
	require.Contains(t, watcher.line(), "published m version 1")
	watcher.signal(syscall.SIGINT)
	require.Equal(t, cli.ExitOK, watcher.exit(), watcher.stderr)
	require.Empty(t, watcher.stderr.String())
}

func TestPing(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.serve()
	require.Regexp(t, `^(answer from `+p.socket()+`: \S+\n){3}3 answers: min .* p50 .* max \S+\n$`, p.must("ping", "-c", "3", "-i", "1ms"))
	require.Regexp(t, `^50 answers: .*\n$`, p.must("ping", "-c", "50", "-i", "0"))
	var l latencies
	require.NoError(t, json.Unmarshal([]byte(p.must("ping", "-c", "5", "-i", "0", "--json")), &l))
	require.Equal(t, 5, l.Count)
	require.Positive(t, l.Min)
	require.LessOrEqual(t, l.P50, l.P99)

	endless := p.start(p.command("ping", "-c", "0", "-i", "1ms"))
	endless.line()
	endless.signal(syscall.SIGINT)
	require.Equal(t, cli.ExitOK, endless.exit(), endless.stderr)
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	var samples []time.Duration
	for i := 100; i > 0; i-- {
		samples = append(samples, time.Duration(i))
	}
	require.Equal(t, latencies{Count: 100, Min: 1, Mean: 50, P50: 50, P90: 90, P99: 99, Max: 100}, summarize(samples))
	require.Equal(t, latencies{Count: 1, Min: 7, Mean: 7, P50: 7, P90: 7, P99: 7, Max: 7}, summarize([]time.Duration{7}))
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.Contains(t, p.must("completion", "bash"), "__complete")
	code, _, stderr := inProcess("completion", "nonsense")
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, `there is no command "nonsense"`)
	require.Equal(t, ":4\n", p.must("__complete", "get", ""), "no completions without an owner")
	path := p.model("m.safetensors", 1)
	p.serve("llm="+path, "vad="+path, "vision="+path, "--socket", p.file("s"))
	for line, want := range map[string]string{
		"get|--socket|S|v":      "vad\tversion 1, 2.1 KiB\nvision\tversion 1, 2.1 KiB\n:4\n",
		"get|--socket|S|vad|":   ":4\n",
		"withdraw|--socket|S|l": "llm\tversion 1, 2.1 KiB\n:4\n",
		"inspect|--socket|S|ll": "llm\tversion 1, 2.1 KiB\n:0\n",
		"serve|--device|":       "host\tshared memory of this host\ncuda:0\tthe first GPU\n:4\n",
		"publish|llm=":          ":0\n",
	} {
		args := strings.Split(strings.ReplaceAll("__complete|"+line, "|S|", "|"+p.file("s")+"|"), "|")
		require.Equal(t, want, p.must(args...), line)
	}
}

// A publication fails at once if its owner ends. It does not wait for another owner.
func TestPublishOwnerEnds(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	large := p.file("large.safetensors")
	require.NoError(t, module.SynthesizeFile(large, module.Synthetic{Tensors: 4, Bytes: 64 << 20}))
	owner := p.serve()
	publisher := p.start(p.command("publish", "a="+p.model("a.safetensors", 1), "b="+large, "c="+large, "d="+large, "--timeout", "1m"))
	require.Regexp(t, `^published a version 1`, publisher.line())
	owner.signal(syscall.SIGKILL)
	start := time.Now()
	require.Equal(t, cli.ExitFailure, publisher.exit())
	require.Contains(t, publisher.stderr.String(), "the owner ended")
	require.Less(t, time.Since(start), 20*time.Second, "before the owner's time limit")
}
