package natslink

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Scopes are the subjects of bins and queues that a client of an embedded server may use. A scope is
//
//	bin.NAMESPACE            all bins of a namespace
//	bin.NAMESPACE.PATTERN    the bins whose names match; * stands for one part of a name, a final > for one or more
//	queue.NAMESPACE          a queue
//	>                        everything, also streams and buckets of other programs
//
// Large bodies of items belong to the whole namespace: a client with a scope of some bins does not receive them. Names are escaped as in subjects: every byte other than a letter, digit, dot, hyphen or underscore is %XX.
type Scopes struct {
	// Read contains the scopes that the client may read.
	Read []string
	// Write contains the scopes that the client may read and change.
	Write []string
}

// everything is the scope of all subjects.
const everything = ">"

// scope is a parsed scope.
type scope struct {
	kind, namespace string
	rest            string // pattern of names, ">" for all
	write           bool
}

// CheckScope returns an error that describes why text is not a scope.
func CheckScope(text string) error {
	if text == everything {
		return nil
	}
	_, err := parseScope(text, false)
	return err
}

func parseScope(text string, write bool) (scope, error) {
	parts := strings.SplitN(text, ".", 3)
	bad := fmt.Errorf("%q is not a scope of NATS: use bin.NAMESPACE, bin.NAMESPACE.PATTERN, queue.NAMESPACE or >", text)
	if len(parts) < 2 || parts[0] != "bin" && parts[0] != "queue" || parts[1] == "" || strings.ContainsAny(parts[1], "*>. \t") {
		return scope{}, bad
	}
	s := scope{kind: parts[0], namespace: parts[1], rest: everything, write: write}
	if len(parts) == 3 {
		s.rest = parts[2]
	}
	if s.kind == "queue" && s.rest != everything {
		return scope{}, errors.New("a scope of a queue has no topic: its pullers receive all topics")
	}
	words := strings.Split(s.rest, ".")
	for i, word := range words {
		if word == "" || word == everything && i < len(words)-1 || word != "*" && word != everything && strings.ContainsAny(word, "*> \t") {
			return scope{}, bad
		}
	}
	return s, nil
}

// all reports whether the scopes contain everything, with the right to change it.
func (s Scopes) all() bool { return slices.Contains(s.Write, everything) }

// parse returns the valid scopes, except for everything.
func (s Scopes) parse() (list []scope) {
	for _, text := range s.Read {
		if one, err := parseScope(text, false); err == nil {
			list = append(list, one)
		}
	}
	for _, text := range s.Write {
		if one, err := parseScope(text, true); err == nil {
			list = append(list, one)
		}
	}
	return list
}

// stream returns the name of the stream of the scope, and bodies that of its large bodies.
func (s scope) stream() string {
	return map[string]string{"bin": "BINS_", "queue": "QUEUE_"}[s.kind] + s.namespace
}

func (s scope) bodies() string { return "OBJ_" + s.bucket() }

func (s scope) bucket() string { return s.stream() }

// subjects returns the subjects of the scope's items.
func (s scope) subjects() string { return s.kind + "." + s.namespace + "." + s.rest }

// services returns the subjects on which a client with this scope may send requests. Requests on checked subjects pass the
// server's gate, which reads the request.
func (s scope) services() (direct, checked []string) {
	api := "$JS.API."
	direct = append(direct, api+"STREAM.INFO."+s.stream(), api+"STREAM.INFO."+s.bodies())
	if s.rest == everything {
		for _, stream := range []string{s.stream(), s.bodies()} {
			direct = append(direct, api+"STREAM.MSG.GET."+stream, api+"DIRECT.GET."+stream, api+"DIRECT.GET."+stream+".>")
		}
	} else {
		direct = append(direct, api+"DIRECT.GET."+s.stream()+"."+s.subjects(), api+"DIRECT.GET."+s.stream()+".bin-take."+s.namespace+"."+s.rest)
	}
	if s.kind == "bin" || s.write { // reading from a queue takes its items
		checked = append(checked, api+"CONSUMER.CREATE."+s.stream()+".>", api+"CONSUMER.CREATE."+s.bodies()+".>")
		for _, verb := range []string{"MSG.NEXT", "INFO", "DELETE"} {
			direct = append(direct, api+"CONSUMER."+verb+"."+s.stream()+".*")
		}
	}
	if !s.write {
		return direct, checked
	}
	direct = append(direct, s.subjects(), "$O."+s.bucket()+".C.*", "$O."+s.bucket()+".M.*")
	checked = append(checked, api+"STREAM.PURGE."+s.stream(), api+"STREAM.PURGE."+s.bodies())
	switch s.kind {
	case "bin":
		direct = append(direct, "bin-take."+s.namespace+"."+s.rest)
		if s.rest != everything {
			// A writer whose answer was lost sends its id again to a subject without a bin.
			direct = append(direct, "bin."+s.namespace+".%", "bin-take."+s.namespace+".%")
		}
	case "queue":
		direct = append(direct, "$JS.ACK."+s.stream()+".>")
	}
	return direct, checked
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
