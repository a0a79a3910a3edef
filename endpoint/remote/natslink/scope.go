package natslink

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Scopes are the bins, queues and training runs that a client of an embedded server may use. A scope is
//
//	bin.NAMESPACE            all bins of a namespace
//	bin.NAMESPACE.PATTERN    the bins whose names match; * stands for one part of a name, a final > for one or more
//	queue.NAMESPACE          a queue
//	rl.RUN                   a training run (package rl): its parameters, members and data
//	rl.RUN.worker            the part of a worker: it receives parameters, joins the run and adds data
//	>                        everything, also streams and buckets of other programs
//
// To read a run is to receive its parameters and to list its members. Large bodies of items belong to the whole
// namespace: a client with a scope of some bins does not receive them. Names are escaped as in subjects: every byte other
// than a letter, digit, dot, hyphen or underscore is %XX.
type Scopes struct {
	// Read contains the scopes that the client may read.
	Read []string
	// Write contains the scopes that the client may read and change.
	Write []string
}

// everything is the scope of all subjects.
const everything = ">"

// kind is the kind of content of a scope's stream.
type kind string

const (
	binItems   kind = "bin"
	queueItems kind = "queue"
	objectKind kind = "objects" // an object store
	valueKind  kind = "values"  // a key-value bucket
)

// scope is the part of one stream that a client may use.
type scope struct {
	kind      kind
	namespace string // of bins or a queue, or the name of the bucket
	rest      string // pattern of names, ">" for all
	write     bool
	addOnly   bool // of a queue: items may be added, not taken
}

// CheckScope returns an error that describes why text is not a scope.
func CheckScope(text string) error {
	if text == everything {
		return nil
	}
	_, err := parseScope(text, false)
	return err
}

func parseScope(text string, write bool) ([]scope, error) {
	parts := strings.SplitN(text, ".", 3)
	bad := fmt.Errorf("%q is not a scope of NATS: use bin.NAMESPACE, bin.NAMESPACE.PATTERN, queue.NAMESPACE, rl.RUN, rl.RUN.worker or >", text)
	if len(parts) < 2 || parts[1] == "" || strings.ContainsAny(parts[1], "*>. \t") {
		return nil, bad
	}
	s := scope{namespace: parts[1], rest: everything, write: write}
	if len(parts) == 3 {
		s.rest = parts[2]
	}
	switch parts[0] {
	case "bin":
		s.kind = binItems
	case "queue":
		s.kind = queueItems
		if s.rest != everything {
			return nil, errors.New("a scope of a queue has no topic: its pullers receive all topics")
		}
	case "rl":
		if len(parts) == 3 && s.rest != "worker" {
			return nil, bad
		}
		return runScopes(s.namespace, len(parts) == 3, write), nil
	default:
		return nil, bad
	}
	words := strings.Split(s.rest, ".")
	for i, word := range words {
		if word == "" || word == everything && i < len(words)-1 || word != "*" && word != everything && strings.ContainsAny(word, "*> \t") {
			return nil, bad
		}
	}
	return []scope{s}, nil
}

// runScopes returns the streams of a training run, whose names package rl defines.
func runScopes(run string, worker, write bool) []scope {
	list := []scope{
		{kind: binItems, namespace: "rl", rest: run + ".parameters", write: write && !worker},
		{kind: objectKind, namespace: "RL_" + run + "_parameters", rest: everything, write: write && !worker},
		{kind: valueKind, namespace: "RL_" + run, rest: everything, write: write},
	}
	if write {
		list = append(list, scope{kind: queueItems, namespace: "rl_" + run, rest: everything, write: true, addOnly: worker})
	}
	return list
}

// all reports whether the scopes contain everything, with the right to change it.
func (s Scopes) all() bool { return slices.Contains(s.Write, everything) }

// parse returns the valid scopes, except for everything.
func (s Scopes) parse() (list []scope) {
	for _, text := range s.Read {
		if some, err := parseScope(text, false); err == nil {
			list = append(list, some...)
		}
	}
	for _, text := range s.Write {
		if some, err := parseScope(text, true); err == nil {
			list = append(list, some...)
		}
	}
	return list
}

// stream returns the name of the stream of the scope.
func (s scope) stream() string {
	return map[kind]string{binItems: "BINS_", queueItems: "QUEUE_", objectKind: "OBJ_", valueKind: "KV_"}[s.kind] + s.namespace
}

// bucket returns the name of the object store of the scope's large bodies, or of its objects. It is empty for values.
func (s scope) bucket() string {
	switch s.kind {
	case objectKind:
		return s.namespace
	case valueKind:
		return ""
	}
	return s.stream()
}

// bodies returns the stream of the object store.
func (s scope) bodies() string { return "OBJ_" + s.bucket() }

// subjects returns the subjects of the scope's items.
func (s scope) subjects() string {
	if s.kind == valueKind {
		return "$KV." + s.namespace + "." + s.rest
	}
	return string(s.kind) + "." + s.namespace + "." + s.rest
}

// live reports whether the client receives new items when they are stored.
func (s scope) live() bool { return s.kind == binItems || s.kind == queueItems && !s.addOnly }

// api is the prefix of the requests of JetStream.
const api = "$JS.API."

// services holds the subjects of the requests and publications of a client.
type services struct {
	permitted []string // subjects that the client may publish to
	published []string // those of messages to store
	direct    []string // subjects that the server handles without the gate
	gated     []string // subjects that pass the gate; they may be wider than the permitted ones
	pulled    []string // streams from which the client pulls with its own consumers
}

// allow permits subjects that pass the gate.
func (v *services) allow(subjects ...string) {
	v.permitted, v.gated = append(v.permitted, subjects...), append(v.gated, subjects...)
}

// bypass permits subjects that do not pass the gate.
func (v *services) bypass(subjects ...string) {
	v.permitted, v.direct = append(v.permitted, subjects...), append(v.direct, subjects...)
}

// publish permits publications. The server maps them before it checks the client's permissions.
func (v *services) publish(subject, gated string) {
	v.permitted, v.published, v.gated = append(v.permitted, inward(subject)), append(v.published, subject), append(v.gated, gated)
}

// pullers is the consumer that all takers of a queue share.
const pullers = "pullers"

// services adds the subjects on which a client with this scope may send.
//
// Requests that may name other subjects, other clients' consumers or headers of the server pass the gate. Two kinds do
// not: reads by a client that may read the whole stream, and the pieces of bodies by a client that may remove all of them.
func (s scope) services(v *services) {
	whole := s.rest == everything && !s.addOnly
	streams := []string{s.stream()}
	if s.bucket() != "" && s.kind != objectKind {
		streams = append(streams, s.bodies())
	}
	for _, stream := range streams {
		v.allow(api + "STREAM.INFO." + stream)
		if whole {
			v.bypass(api+"STREAM.MSG.GET."+stream, api+"DIRECT.GET."+stream, api+"DIRECT.GET."+stream+".>")
		}
	}
	if s.rest != everything {
		v.permitted = append(v.permitted, api+"DIRECT.GET."+s.stream()+"."+s.subjects(), api+"DIRECT.GET."+s.stream()+".bin-take."+s.namespace+"."+s.rest)
		v.gated = append(v.gated, api+"DIRECT.GET."+s.stream()+".>")
		v.allow(api+"DIRECT.GET."+s.stream(), api+"STREAM.MSG.GET."+s.stream())
	}
	if s.kind != queueItems {
		for _, stream := range streams {
			v.allow(api + "CONSUMER.CREATE." + stream + ".>")
		}
		for _, verb := range []string{"MSG.NEXT", "INFO", "DELETE"} {
			v.allow(api + "CONSUMER." + verb + "." + s.stream() + ".*")
		}
		v.pulled = append(v.pulled, s.stream())
	}
	if s.write {
		s.changes(v)
	}
}

// changes adds the subjects on which a client may change the scope.
func (s scope) changes(v *services) {
	whole := s.rest == everything && !s.addOnly
	switch s.kind {
	case binItems:
		v.publish(s.subjects(), "bin."+s.namespace+".>")
		v.publish("bin-take."+s.namespace+"."+s.rest, "bin-take."+s.namespace+".>")
		// A writer whose answer was lost sends its id again to a subject without a bin.
		v.publish("bin."+s.namespace+".%", "bin."+s.namespace+".>")
		v.publish("bin-take."+s.namespace+".%", "bin-take."+s.namespace+".>")
		v.allow(api + "STREAM.PURGE." + s.stream())
	case queueItems, valueKind:
		v.publish(s.subjects(), s.subjects())
	}
	if s.kind == queueItems && !s.addOnly { // reading from a queue takes its items
		v.allow(api+"STREAM.PURGE."+s.stream(), api+"CONSUMER.CREATE."+s.stream()+"."+pullers, api+"CONSUMER.INFO."+s.stream()+"."+pullers)
		v.allow(api + "CONSUMER.CREATE." + s.bodies() + ".>") // refused: the library then reads in another way
		v.bypass(nextMessage+s.stream()+"."+pullers, ackSubjects+s.stream()+"."+pullers+".>")
	}
	if s.bucket() == "" {
		return
	}
	pieces, descriptions := "$O."+s.bucket()+".C.*", "$O."+s.bucket()+".M.*"
	v.publish(descriptions, descriptions)
	if whole {
		v.bypass(pieces)
	} else {
		v.publish(pieces, pieces)
	}
	// The library looks for an object of the same name before it writes one.
	v.permitted = append(v.permitted, api+"DIRECT.GET."+s.bodies()+"."+descriptions)
	v.gated = append(v.gated, api+"DIRECT.GET."+s.bodies()+".>")
	v.allow(api + "STREAM.PURGE." + s.bodies())
}

// covers reports whether every subject that matches pattern also matches one of the allowed patterns.
func covers(allowed []string, pattern string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool { return subset(strings.Split(a, "."), strings.Split(pattern, ".")) })
}

// subset reports whether a pattern of subjects only matches subjects that the other one matches too.
func subset(allowed, pattern []string) bool {
	for i, a := range allowed {
		switch {
		case i >= len(pattern):
			return false
		case a == everything:
			return true
		case pattern[i] == everything, a != "*" && a != pattern[i]:
			return false
		}
	}
	return len(allowed) == len(pattern)
}
