package command

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint"
	example "github.com/sharedtensor/sharedtensor/examples/service"
	"github.com/sharedtensor/sharedtensor/module"
)

func TestTopOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.service()
	h := attach(t, p.socket(), "base")
	p.must(append([]string{"submit"}, slow...)...)
	p.must("call", "transform", "x=@base:layers.0.weight", "scale=2")
	client := p.dial()
	for range 2 { // the second one is found
		ref, err := endpoint.CallManaged[*module.StateDict](t.Context(), client, example.BuildModel, example.BuildArgs{HiddenSize: 64, Layers: 2})
		require.NoError(t, err)
		defer ref.Close()
	}
	text := p.must("top", "--once", "-i", "50ms")
	require.Regexp(t, `(?m)^examples/service \(pid \d+\), up \S+, on `+p.socket()+` +\d\d:\d\d:\d\d$`, text)
	require.Regexp(t, `(?m)^3 clients, 0 calls/s, - hits, \d+(\.\d+)? requests/s, 0 errors/s, tasks 1 running of 3, 1 result cached in 32\.\d KiB, 1 object$`, text)
	require.Regexp(t, `(?m)^MEMORY  96\.0 KiB owned, 96\.0 KiB mapped by clients\nhost +▕█+▏ +96\.0 KiB .*\n  base v1 +▕█+.*▏ +64\.0 KiB  1 holder\n`+
		`  managed objects +▕█+.*▏ +32\.0 KiB  \d pieces?$`, text)
	require.Regexp(t, `(?m)^build_model +0 +3 +33% +0 +1 +\S+ +\S+ +\S+$`, text)
	require.Regexp(t, `(?m)^transform +0 +1 +0% +0 +1 +\S+ +\S+ +\S+$`, text)
	require.Regexp(t, `(?m)^  owner +\d+ +\S+ +0 +0 B +0 +0 +examples/service$`, text)
	require.Regexp(t, `(?m)^ *\d+ +\d+ +\S+ +1 +64\.0 KiB +0 +0 +\S+$`, text)
	require.Regexp(t, `(?m)^ *\d+ +\d+ +\S+ +0 +32\.0 KiB +2 +0 +test$`, text)
	require.Regexp(t, `(?m)^[0-9a-f]{12}  build_model +running +0% .* layer 1 of 1000$`, text)

	var s topSnapshot
	require.NoError(t, json.Unmarshal([]byte(p.must("top", "--once", "--json", "-i", "50ms")), &s))
	require.Zero(t, s.Rates.Requests, "its own requests are not counted")
	require.Len(t, s.Devices, 1)
	require.Equal(t, "host", s.Devices[0].Device)
	require.Equal(t, []topModel{{Name: "base", Version: 1, State: "current", Bytes: 1 << 16, Holders: 1}}, s.Devices[0].Models)
	require.Equal(t, endpoint.MemoryObjects, s.Devices[0].Others[0].Use)
	require.Len(t, s.Tasks, 3)
	require.EqualValues(t, 1, h.Version())
}

func TestTopWithoutTerminal(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.Contains(t, p.fails(cli.ExitFailure, "top"), "no owner is serving")
	p.serve()
	c := p.start(p.command("top", "-i", "50ms"))
	views := 0
	for views < 2 {
		line := c.line()
		require.NotContains(t, line, "\x1b")
		if strings.HasPrefix(line, "MEMORY") {
			views++
		}
	}
	c.signal(syscall.SIGINT)
	require.Equal(t, cli.ExitOK, c.exit(), c.stderr)
	each := p.start(p.command("top", "--json", "-i", "50ms"))
	var s topSnapshot
	require.NoError(t, json.Unmarshal([]byte(each.line()), &s))
	require.Nil(t, s.Rates, "there is nothing to compare the first with")
	require.NoError(t, json.Unmarshal([]byte(each.line()), &s))
	require.NotNil(t, s.Rates)
}

// crowded returns a snapshot with more entries of every kind than fit.
func crowded() *topSnapshot {
	s := &topSnapshot{At: time.Unix(1e9, 0), Rates: &topRates{Requests: 123.4, Endpoints: map[string]topCalls{"e3": {Calls: 2.5}}}}
	s.Owner.Label, s.Owner.Socket = "重\x1b[2J", "/run/"+strings.Repeat("long/", 30)
	s.Owner.Stats = endpoint.ServerStats{Clients: 9, CacheEntries: 3, CacheBytes: 1 << 20, CacheHits: 3, CacheMisses: 1, Objects: 2}
	d := topDevice{Device: "cuda:0", Name: "GPU", Bytes: 10 << 30, Others: []topUse{{endpoint.MemoryObjects, 1 << 20, 3}}}
	for i := range 30 {
		name := "e" + string(rune('0'+i%10))
		d.Models = append(d.Models, topModel{Name: strings.Repeat(name, i), Version: 1, State: "superseded", Bytes: 1 << i})
		s.Owner.Endpoints = append(s.Owner.Endpoints, endpoint.EndpointStats{Name: name, Runs: uint64(i), P50: time.Millisecond})
		s.Owner.Sessions = append(s.Owner.Sessions, endpoint.SessionInfo{Session: uint64(i)})
		s.Tasks = append(s.Tasks, endpoint.TaskInfo{ID: "x", State: endpoint.TaskRunning, Message: strings.Repeat("m", 100)})
	}
	s.Devices = []topDevice{d}
	s.sort()
	return s
}

func TestTopFitsTheTerminal(t *testing.T) {
	t.Parallel()
	s := crowded()
	for _, size := range [][2]int{{80, 24}, {120, 40}, {200, 300}, {60, 12}, {20, 5}, {1, 1}, {80, 2}, {80, 3}, {80, 0}} {
		width, height := size[0], size[1]
		lines := s.view(width, height, "")
		if height > 1 {
			require.LessOrEqual(t, len(lines), height, "%v", size)
		}
		for _, line := range lines {
			require.LessOrEqual(t, utf8.RuneCountInString(line.text), width, "%v: %q", size, line.text)
			require.NotContains(t, line.text, "\x1b", "%v", size)
		}
	}
	require.Len(t, s.view(80, 24, ""), 24, "the room is used")
	require.Len(t, s.view(80, 0, ""), 2+4*2+32+30+30+30, "nothing is left out")
	require.Contains(t, s.memory(80).rows[31], "  managed objects")
	text := ""
	for _, line := range s.view(80, 24, "the owner did not answer within 1s") {
		text += line.text + "\n"
	}
	require.Contains(t, text, "this is as of ")
	require.Contains(t, text, ": the owner did not answer within 1s\n")
	require.Contains(t, text, "… 2")
	require.Contains(t, text, "\ne3 ", "the busiest endpoint is first")
}

func TestTopShare(t *testing.T) {
	t.Parallel()
	of := func(rows ...int) []topSection {
		list := make([]topSection, len(rows))
		for i, n := range rows {
			list[i].rows = make([]string, n)
		}
		return list
	}
	require.Equal(t, []int{2, 9, 9}, share(of(2, 50, 50), 26))
	require.Equal(t, []int{2, 3, 0}, share(of(2, 3, 0), 100))
	require.Equal(t, []int{1, -1, -1}, share(of(5, 5, 5), 3))
	require.Equal(t, []int{-1, -1}, share(of(5, 5), 2))
	require.Equal(t, []int{-1}, share(of(5), -1))
}

func TestBar(t *testing.T) {
	t.Parallel()
	require.Equal(t, "▕████▏", bar(10, 10, 4))
	require.Equal(t, "▕██  ▏", bar(5, 10, 4))
	require.Equal(t, "▕▏   ▏", bar(1, 1<<40, 4), "a little is not nothing")
	require.Equal(t, "▕    ▏", bar(0, 10, 4))
	require.Equal(t, "▕    ▏", bar(0, 0, 4))
	require.Equal(t, "▕██▌ ▏", bar(5, 8, 4))
	require.Equal(t, "▕████▏", bar(20, 10, 4))
}

func TestRates(t *testing.T) {
	t.Parallel()
	at := func(second int64, id string, requests, calls uint64) *topSnapshot {
		s := &topSnapshot{At: time.Unix(second, 0)}
		s.Owner.ID, s.Owner.Stats.Requests = id, requests
		s.Owner.Endpoints = []endpoint.EndpointStats{{Name: "e", Calls: calls, CacheHits: 2 * calls, Runs: 3 * calls, Failures: 4 * calls}, {Name: "f", Calls: calls}}
		return s
	}
	require.Nil(t, rates(nil, at(1, "a", 1, 1), 3))
	require.Nil(t, rates(at(1, "a", 1, 1), at(2, "b", 1, 1), 3), "another owner")
	require.Nil(t, rates(at(1, "a", 1, 1), at(1, "a", 1, 1), 3), "no time")
	r := rates(at(1, "a", 10, 4), at(3, "a", 23, 5), 3)
	require.InDelta(t, 5, r.Requests, 1e-9)
	require.Equal(t, map[string]topCalls{"e": {0.5, 1, 1.5, 2}, "f": {Calls: 0.5}}, r.Endpoints)
	require.Equal(t, topCalls{1, 1, 1.5, 2}, r.topCalls)
	require.Zero(t, rates(at(1, "a", 10, 4), at(3, "a", 12, 5), 3).Requests, "never below nothing")
}

func TestPercent(t *testing.T) {
	t.Parallel()
	require.Equal(t, "-", percent(0, 0))
	require.Equal(t, "0%", percent(0, 3))
	require.Equal(t, "33%", percent(1, 3))
	require.Equal(t, "100%", percent(4, 3), "a task that was submitted before finds its result now")
}
