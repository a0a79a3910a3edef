package command

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	example "github.com/sharedtensor/sharedtensor/examples/service"
	"github.com/sharedtensor/sharedtensor/module"
)

// buildService builds the example's owner with endpoints once for all tests.
var buildService = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(program), "service")
	out, err := exec.Command("go", "build", "-o", path, "../../../../examples/service/owner").CombinedOutput()
	if err != nil {
		return string(out), err
	}
	return path, nil
})

// service starts an owner with endpoints on the default socket and waits until it serves.
func (p *place) service() *process {
	p.t.Helper()
	path, err := buildService()
	require.NoError(p.t, err, path)
	c := exec.Command(path, p.socket())
	c.Env, c.Dir = p.env, p.dir
	s := p.start(c)
	eventually(p.t, "the owner serves", func() bool { return strings.Contains(s.stderr.String(), "serving ") })
	return s
}

// dial returns a client in this process.
func (p *place) dial() *endpoint.Client {
	p.t.Helper()
	dev, err := cli.OpenHost()
	require.NoError(p.t, err)
	p.t.Cleanup(func() { require.NoError(p.t, dev.Close()) })
	client, err := endpoint.Dial(context.Background(), endpoint.ClientOptions{Socket: p.socket(), Devices: []driver.Device{dev}, Label: "test"})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { require.NoError(p.t, client.Close()) })
	return client
}

// slow holds the arguments of a task that runs until it is cancelled.
var slow = []string{"build_model", "hidden_size=1", "layers=1000", "pace_ms=1000"}

func TestCall(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.service()
	require.Regexp(t, `^state dict of 2 tensors, 2\.0 KiB\n  TENSOR .*\n  layers\.0\.weight +float32 +\[16, 16\] +1\.0 KiB\n`,
		p.must("call", "build_model", "hidden_size=16", "layers=2"))
	var d description
	require.NoError(t, json.Unmarshal([]byte(p.must("call", "build_model", "--in", `{"hidden_size": 16, "layers": 2}`, "--json")), &d))
	require.Len(t, d.Tensors, 2)
	require.EqualValues(t, 2048, d.Bytes)

	file := p.model("m.safetensors", 1)
	text := p.must("call", "transform", "x=@"+file+":layer.bias", "scale=0", "shift=0.1", "--json")
	var out tensorJSON
	require.NoError(t, json.Unmarshal([]byte(text), &out))
	require.Equal(t, "float32", out.DType)
	require.Equal(t, []int64{33}, out.Shape)
	require.Len(t, out.Values, 33)
	require.Equal(t, 0.1, out.Values[0], "not 0.10000000149011612")
	require.Regexp(t, `^tensor\(\[\[ ?-?\d.*\n(.*\n)*.*\]\]\)\n$`, p.must("call", "transform", "x=@base:layers.0.weight", "scale=2"))

	// A tied tensor is found under the name that inspect prints.
	require.Equal(t, p.must("call", "transform", "x=@"+file+":layer.weight", "scale=1"), p.must("call", "transform", "x=@"+file+":layer.tied", "scale=1"))
	lines := strings.Split(p.must("call", "spectral_norm", "a=@base:layers.0.weight", "steps=30", "--json"), "\n")
	require.Len(t, lines, 31)
	var e example.Estimate
	require.NoError(t, json.Unmarshal([]byte(lines[29]), &e))
	require.Equal(t, 30, e.Step)
	require.Positive(t, e.Value)
}

func TestCallErrors(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.Contains(t, p.fails(cli.ExitFailure, "call", "transform"), "no owner is serving")
	p.service()
	file := p.model("m.safetensors", 1)
	for line, want := range map[string]string{
		"call transfor":                                        `"transfor": endpoint is not registered on ` + p.socket() + "; it has build_model, spectral_norm, transform",
		"submit nothing":                                       "it has build_model",
		"invalidate nothing":                                   "it has build_model",
		"endpoints nothing":                                    "it has build_model",
		"call transform y=1":                                   `no field "y"; expected a map with the fields x, scale, shift; transform takes x=tensor scale=float32 [shift=float32]`,
		"call transform x=1":                                   "transform takes x=tensor",
		"submit build_model hidden_size=a":                     "build_model takes hidden_size=int64 [layers=int] [pace_ms=int]",
		"call build_model hidden_size=0":                       "a model of 0 layers of 0",
		"call transform x=@nope:x":                             `"nope" is neither a file nor a published name`,
		"call transform x=@no.safetensors:x":                   "no.safetensors: file does not exist",
		"call transform x=@base:nope":                          `base has no tensor "nope"`,
		"call transform x=@" + file + ":nope":                  `m.safetensors has no tensor "nope"`,
		"call transform x=@base":                               "transform takes x=tensor",
		"submit spectral_norm a=@base:layers.0.weight steps=1": "stream",
		"wait nope":                                            "task was not found",
		"cancel nope":                                          "task was not found",
		"release nope":                                         `"nope": handle is stale`,
	} {
		require.Contains(t, p.fails(cli.ExitFailure, strings.Fields(line)...), want, line)
	}
	r := p.run(append([]string{"call", "--limit", "50ms"}, slow...)...)
	require.Equal(t, cli.ExitFailure, r.code)
	require.Regexp(t, `sharedtensor: the function did not end within 50ms\n$`, r.stderr)
	eventually(t, "cancelling a call cancels its task", func() bool {
		return strings.TrimSpace(p.must("tasks", "--json", "--state", "running,pending")) == "[]"
	})
}

func TestInterruptedCallStopsItsTask(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.service()
	c := p.start(p.command(append([]string{"call"}, slow...)...))
	tasks := func(state endpoint.TaskState) []endpoint.TaskInfo {
		var list []endpoint.TaskInfo
		require.NoError(t, json.Unmarshal([]byte(p.must("tasks", "--json", "--state", string(state))), &list))
		return list
	}
	eventually(t, "the task runs", func() bool { return len(tasks(endpoint.TaskRunning)) == 1 })
	c.signal(syscall.SIGINT)
	require.Equal(t, cli.ExitFailure, c.exit())
	require.Contains(t, c.stderr.String(), "sharedtensor: interrupted\n")
	eventually(t, "the task has ended", func() bool { return len(tasks(endpoint.TaskCancelled)) == 1 })
}

func TestTasks(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.service()
	require.Contains(t, p.run("tasks").stderr, "there are no matching tasks")
	require.Equal(t, "[]\n", p.must("tasks", "--json"))
	watch := p.start(p.command("tasks", "--watch", "--state", "running"))

	id := strings.TrimSpace(p.must(append([]string{"submit"}, slow...)...))
	require.Len(t, id, 32)
	require.Regexp(t, `^\d\d:\d\d:\d\d\.\d{3} `+id[:12]+` build_model running `, watch.line())
	require.Regexp(t, `(?m)^`+id[:12]+` +build_model +running +0% +\S+ +\S+ +layer 1 of 1000$`, p.must("tasks", "--endpoint", "build_model"))
	require.Contains(t, p.must("__complete", "wait", id[:3]), id+"\tbuild_model running")

	waiting := p.start(p.command("wait", id[:12]))
	eventually(t, "wait shows the progress", func() bool {
		return strings.Contains(waiting.stderr.String(), id[:12]+" build_model: 0% layer 1 of 1000\n")
	})
	require.Equal(t, "cancelled "+id[:12]+" build_model\n", p.must("cancel", id[:8]))
	require.Equal(t, cli.ExitFailure, waiting.exit())
	require.Contains(t, waiting.stderr.String(), "was cancelled\n")
	for line := ""; !strings.Contains(line, id[:12]+" build_model cancelled was cancelled"); line = watch.line() {
	}
	watch.signal(syscall.SIGINT)
	require.Equal(t, cli.ExitOK, watch.exit(), watch.stderr)
	require.Contains(t, p.fails(cli.ExitFailure, "cancel", id), "has already ended: it is cancelled")
	require.NotContains(t, p.must("__complete", "cancel", ""), id)

	var info endpoint.TaskInfo
	require.NoError(t, json.Unmarshal([]byte(p.must("submit", "build_model", "hidden_size=8", "layers=3", "--json")), &info))
	require.Regexp(t, `^`+info.ID[:12]+` build_model completed in \S+\n$`, p.must("wait", info.ID))
	require.NoError(t, json.Unmarshal([]byte(p.must("wait", info.ID, "--json")), &info))
	require.Equal(t, endpoint.TaskCompleted, info.State)
	require.Contains(t, p.must("wait", "--result", info.ID), "state dict of 3 tensors, 768 B")
	require.Contains(t, p.fails(cli.ExitFailure, "wait", "--result", info.ID), "handle is stale", "no other references")

	failed := strings.TrimSpace(p.must("submit", "build_model", "hidden_size=0"))
	require.Contains(t, p.fails(cli.ExitFailure, "wait", failed), "a model of 0 layers")
	require.Regexp(t, failed[:12]+` +build_model +failed +- +\S+ +\S+ +invalid argument: a model of 0 layers`, p.must("tasks"))
}

func TestManagedObjects(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.service()
	client := p.dial()
	ctx := context.Background()
	hold := func() *endpoint.Ref[*module.StateDict] {
		ref, err := endpoint.CallManaged[*module.StateDict](ctx, client, example.BuildModel, example.BuildArgs{HiddenSize: 8, Layers: 2})
		require.NoError(t, err)
		return ref
	}
	ref := hold()
	require.Contains(t, p.fails(cli.ExitFailure, "release", ref.ID()), "object "+ref.ID()+" of build_model has 1 reference, held by ")
	require.Equal(t, "dropped 0 results of build_model\n", p.must("invalidate", "build_model", "hidden_size=9", "layers=2"))
	require.Equal(t, "dropped 1 result of build_model\n", p.must("invalidate", "build_model", "hidden_size=8", "layers=7"), "layers are not part of the key")
	other := hold()
	require.NotEqual(t, ref.ID(), other.ID())
	require.JSONEq(t, `{"endpoint": "build_model", "dropped": 1}`, p.must("invalidate", "build_model", "--json"))
	require.NoError(t, ref.Close())
	require.NoError(t, other.Close())
}

func TestObjects(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.service()
	require.Contains(t, p.run("objects").stderr, "there are no managed objects")
	require.Equal(t, "[]\n", p.must("objects", "--json"))
	client := p.dial()
	ctx := context.Background()
	var refs []*endpoint.Ref[*module.StateDict]
	for _, size := range []int64{8, 8, 16} {
		ref, err := endpoint.CallManaged[*module.StateDict](ctx, client, example.BuildModel, example.BuildArgs{HiddenSize: size, Layers: 2})
		require.NoError(t, err)
		refs = append(refs, ref)
		t.Cleanup(func() { ref.Close() })
	}
	small, large := refs[0].ID(), refs[2].ID()
	me := "test (pid " + strconv.Itoa(os.Getpid()) + ")"

	lines := strings.Split(p.must("objects"), "\n")
	require.Equal(t, strings.Fields("ID ENDPOINT BYTES DEVICE REFS AGE USED HELD BY KEY"), strings.Fields(lines[0]))
	require.Len(t, lines, 4)
	require.Regexp(t, `^`+small[:12]+` +build_model +\d+ B +cpu:0 +2 +\S+ +\S+ +`+regexp.QuoteMeta(me)+` 2 times +key:model:8$`, lines[1])
	require.Regexp(t, `^`+large[:12]+` +build_model +\S+ KiB +cpu:0 +1 +\S+ +\S+ +`+regexp.QuoteMeta(me)+` +key:model:16$`, lines[2])
	var list []endpoint.ObjectInfo
	require.NoError(t, json.Unmarshal([]byte(p.must("objects", "build_model", "--json")), &list))
	require.Len(t, list, 2)
	require.Equal(t, small, list[0].ID)
	require.EqualValues(t, os.Getpid(), list[0].Holders[0].PID)
	require.Contains(t, p.run("objects", "transform").stderr, "there are no managed objects")
	require.Contains(t, p.fails(cli.ExitFailure, "objects", "nope"), "it has build_model")

	for _, args := range [][]string{{"holders", large[:20]}, {"holders", large, large}} {
		lines = strings.Split(p.must(args...), "\n")
		require.Len(t, lines, 3)
		require.Equal(t, strings.Fields("NAME VERSION OBJECT STATE BYTES SESSION PID LEASES SINCE LABEL"), strings.Fields(lines[0]))
		require.Regexp(t, `^build_model +- +`+large[:12]+` +object +\S+ KiB +\d+ +\d+ +1 +\S+ +test$`, lines[1])
	}
	held := func(args ...string) (list []holding) {
		require.NoError(t, json.Unmarshal([]byte(p.must(append([]string{"holders", "--json"}, args...)...)), &list))
		return list
	}
	require.Len(t, held("build_model"), 2)
	require.Empty(t, held("transform"))
	require.Empty(t, held("base"), "published by the service, without holders")
	require.Len(t, held(), 2)
	h, err := client.Acquire(ctx, "base", endpoint.AcquireOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { h.Close() })
	require.Len(t, held(), 3)
	require.Equal(t, "base", held()[0].Name)
	require.Contains(t, p.must("__complete", "holders", small[:4]), small+"\tbuild_model")

	require.Contains(t, p.fails(cli.ExitFailure, "release", large[:16]), "held by "+me+": --force removes it")
	require.NoError(t, refs[2].Err())
	require.Regexp(t, `^released `+large+` of build_model, \S+ KiB, which was held by `+regexp.QuoteMeta(me)+`\n$`, p.must("release", "--force", large[:16]))
	<-refs[2].Done()
	require.ErrorContains(t, refs[2].Err(), "destroyed by process ")
	require.ErrorContains(t, refs[2].Err(), "(sharedtensor release)")
	require.NoError(t, refs[0].Err())
	r := p.run("release", "-f", "--json", large, small)
	require.Equal(t, cli.ExitFailure, r.code)
	require.Contains(t, r.stderr, `"`+large+`": handle is stale`)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &list))
	require.Len(t, list, 1)
	require.Equal(t, small, list[0].ID)
	require.EqualValues(t, 2, list[0].Holders[0].Refs)
	<-refs[0].Done()
	<-refs[1].Done()
	require.Equal(t, "[]\n", p.must("objects", "--json"))
}

// The table of objects fits terminals of every width.
func TestObjectTableFitsTheTerminal(t *testing.T) {
	t.Parallel()
	object := endpoint.ObjectInfo{
		ID: strings.Repeat("a", 32), Endpoint: "an_endpoint_with_a_long_name", Bytes: 3 << 30, Refs: 12, Sessions: 3,
		CacheKey: "an_endpoint_with_a_long_name/arguments:" + strings.Repeat("0", 64),
		Devices:  []endpoint.DeviceInfo{{Type: "cuda", Index: 0}, {Type: "cuda", Index: 1}},
		Holders:  []endpoint.ObjectHolder{{Process: endpoint.Process{PID: 4_000_000, Label: "a worker\x1b[2J"}, Refs: 11}, {Process: endpoint.Process{PID: 7}, Refs: 1}},
	}
	require.Equal(t, `a worker`+"\x1b"+`[2J (pid 4000000) 11 times, pid 7, 1 more`, heldBy(object))
	for _, width := range []int{80, 120, 200} {
		var b strings.Builder
		require.NoError(t, objectTable([]endpoint.ObjectInfo{object}, time.Now()).Write(&b, width))
		for line := range strings.Lines(b.String()) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width)
			require.NotContains(t, line, "\x1b")
		}
	}
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.service()
	require.Equal(t, strings.Join([]string{
		"NAME           TAKES                                         RETURNS           OPTIONS",
		"build_model    hidden_size=int64 [layers=int] [pace_ms=int]  statedict         task, managed, cached by model:{hidden_size}",
		"spectral_norm  a=tensor steps=int                            service.Estimate  stream",
		"transform      x=tensor scale=float32 [shift=float32]        tensor            timeout 1m00s",
		"",
	}, "\n"), p.must("endpoints"))
	var list []endpoint.EndpointInfo
	require.NoError(t, json.Unmarshal([]byte(p.must("endpoints", "transform", "--json")), &list))
	require.Len(t, list, 1)
	require.Equal(t, time.Minute, list[0].Timeout)
	require.Equal(t, []endpoint.FieldInfo{{Name: "x", Type: "*tensor.Tensor"}, {Name: "scale", Type: "float32"}, {Name: "shift", Type: "float32", Optional: true}},
		list[0].InFields)
	require.Equal(t, strings.Join([]string{
		"FIELD          TYPE              NOTE",
		"spectral_norm                    stream",
		"  takes        service.NormArgs",
		"    a          tensor",
		"    steps      int",
		"  returns      service.Estimate",
		"    step       int",
		"    value      float64",
		"",
	}, "\n"), p.must("endpoints", "spectral_norm"))
	require.Regexp(t, `(?m)^    pace_ms +int +optional$`, p.must("endpoints", "build_model"))
	var b strings.Builder
	require.NoError(t, printEndpoints(&b, []endpoint.EndpointInfo{{Name: "sum", Cache: true, Uncached: 2}}))
	require.Regexp(t, `(?m)^  not cached +2 calls +with tensors that may still be written$`, b.String())
	require.Equal(t, "spectral_norm\ta=tensor steps=int stream\n:4\n", p.must("__complete", "call", "sp"))
	require.Equal(t, "shift=\tfloat32\n:6\n", p.must("__complete", "call", "transform", "scale=2", "s"))
	require.Equal(t, ":0\n", p.must("__complete", "call", "transform", "x=@"))

	bare := newPlace(t)
	bare.serve()
	require.Contains(t, bare.run("endpoints").stderr, "there are no endpoints")
	require.Equal(t, "[]\n", bare.must("endpoints", "--json"))
	require.Contains(t, bare.fails(cli.ExitFailure, "call", "x"), "it has none")
}

func TestHolders(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.serve("a="+p.model("a.safetensors", 1), "b="+p.model("b.safetensors", 2))
	require.Contains(t, p.run("holders").stderr, "there are no holders")
	require.Equal(t, "[]\n", p.must("holders", "--json"))
	attach(t, p.socket(), "a")
	attach(t, p.socket(), "b")
	p.must("publish", "a="+p.file("a.safetensors"))
	lines := strings.Split(p.must("holders", "a"), "\n")
	require.Equal(t, []string{"NAME", "VERSION", "STATE", "BYTES", "SESSION", "PID", "LEASES", "SINCE", "LABEL"}, strings.Fields(lines[0]))
	require.Len(t, lines, 3)
	require.Regexp(t, `^a +1 +superseded +2\.1 KiB +\d+ +\d+ +1 +\S+ +\S+`, lines[1])
	var list []holding
	require.NoError(t, json.Unmarshal([]byte(p.must("holders", "--json")), &list))
	require.Len(t, list, 2)
	require.Equal(t, "b", list[1].Name)
	require.EqualValues(t, os.Getpid(), list[1].PID)
	require.Positive(t, list[1].Session)
	require.Contains(t, p.fails(cli.ExitFailure, "holders", "nope"), `"nope": not found`)
}
