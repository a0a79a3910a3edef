package main

import "strings"

// panel is one comparison: the same work by several systems.
type panel struct {
	title string
	rows  []row
}

// row is one system of a panel. Durations are in nanoseconds, rates in calls per second.
type row struct {
	name string
	ours bool
	rate bool
	took span
}

// names are the systems in the order of the chart.
var names = []struct {
	peer, name string
	ours       bool
}{
	{"endpoint", "sharedtensor", true}, {"sleeping", "sharedtensor, without polling", true},
	{"reused", "sharedtensor, reused memory", true}, {"fresh", "sharedtensor, fresh memory", true},
	{"iceoryx2-call-spin", "iceoryx2, both sides spin", false}, {"iceoryx2-call-event", "iceoryx2, events", false},
	{"iceoryx2", "iceoryx2, both sides spin", false},
	{"bare", "CBOR over a bare socket", false}, {"netrpc", "net/rpc", false}, {"grpc", "grpc-go, Unix socket", false},
}

// comparisons are the panels. The benchmark of a row is the panel's name, "/peer=" and the peer.
var comparisons = []struct{ benchmark, title string }{
	{"Call", "call with 64 bytes, median"},
	{"Callers", "64 concurrent callers, calls per second"},
	{"Argument/bytes=1024", "tensor of 1 KiB as argument"},
	{"Argument/bytes=1048576", "tensor of 1 MiB as argument"},
	{"Argument/bytes=1073741824", "tensor of 1 GiB as argument"},
	{"Result/bytes=1048576", "result of 1 MiB, without its fill, median"},
	{"Result/bytes=67108864", "result of 64 MiB, without its fill, median"},
}

// arrange returns the panels that the results have. A panel without a rival is left out.
func arrange(r results) []panel {
	var out []panel
	for _, c := range comparisons {
		p := panel{title: c.title}
		rivals := false
		for _, n := range names {
			took, ok := r.of(c.benchmark+"/peer="+n.peer, "p50-ns", "ns/op")
			if !ok || took.median <= 0 {
				continue
			}
			one := row{name: n.name, ours: n.ours, took: took}
			if strings.Contains(c.title, "per second") {
				one.rate, one.took = true, span{1e9 / took.high, 1e9 / took.median, 1e9 / took.low}
			}
			rivals = rivals || !n.ours
			p.rows = append(p.rows, one)
		}
		if rivals {
			out = append(out, p)
		}
	}
	return out
}
