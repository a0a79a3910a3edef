package message

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
)

// fields is the content of fields.json: the tables of PROTOCOL.md and the maps of protocol.cddl, for programs in other
// languages.
type fields struct {
	Protocol   int                       `json:"protocol"`
	Frames     map[string]int            `json:"frames"`
	Operations []operationFields         `json:"operations"`
	Messages   map[string][]messageField `json:"messages"`
	Numbers    map[string]map[string]int `json:"numbers"`
}

// operationFields is a row of the table of operations. Request and Response are names of messages, "" for an empty map.
type operationFields struct {
	Number   int    `json:"number"`
	Name     string `json:"name"`
	Request  string `json:"request"`
	Response string `json:"response"`
	Event    string `json:"event,omitempty"`
}

// messageField is a key of a message, with its type as the schema writes it.
type messageField struct {
	Key      int    `json:"key"`
	Name     string `json:"name"`
	Type     string `json:"type"`
	Optional bool   `json:"optional,omitempty"`
}

// eventsOf holds the bodies of the events of operations that send events.
var eventsOf = map[Op]string{
	OpAcquire: "event", OpWatch: "event", OpTaskWatch: "task-event", OpObjectWatch: "object-gone", OpStream: "stream-item",
	OpOffer: "offer-event",
}

var (
	mapRule      = regexp.MustCompile(`(?ms)^([a-z0-9-]+) = \{\n(.*?)^\}`)
	fieldLine    = regexp.MustCompile(`(?m)^  (\? )?(\d+): (.*),\s*; ([a-z0-9-]+)$`)
	numberLine   = regexp.MustCompile(`(?m)^(op|code|event|task-event|offer-event|load|digest)-([a-z-]+) = (\d+)$`)
	operationRow = regexp.MustCompile(`(?m)^\| (\d+) \| ([a-z ]+) \|([a-z -]*)\|([a-z, -]*)\|[^|]*\|$`)
)

// fields.json equals the schema and the prose. `go test ./wire/message -run TestFields -update` writes it.
func TestFieldsAreThoseOfTheSchema(t *testing.T) {
	t.Parallel()
	schema, err := os.ReadFile("../protocol.cddl")
	require.NoError(t, err)
	prose, err := os.ReadFile("../PROTOCOL.md")
	require.NoError(t, err)
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		return n
	}
	f := fields{Protocol: 1, Frames: map[string]int{}, Messages: map[string][]messageField{}, Numbers: map[string]map[string]int{}}
	for kind := wire.KindHello; kind.Valid(); kind++ {
		f.Frames[kind.String()] = int(kind)
	}
	for _, m := range mapRule.FindAllStringSubmatch(string(schema), -1) {
		list := []messageField{}
		for _, l := range fieldLine.FindAllStringSubmatch(m[2], -1) {
			list = append(list, messageField{Key: number(l[2]), Name: l[4], Type: l[3], Optional: l[1] != ""})
		}
		f.Messages[m[1]] = list
	}
	for _, m := range numberLine.FindAllStringSubmatch(string(schema), -1) {
		if f.Numbers[m[1]] == nil {
			f.Numbers[m[1]] = map[string]int{}
		}
		f.Numbers[m[1]][m[2]] = number(m[3])
	}
	name := func(cell string) string {
		cell, _, _ = strings.Cut(strings.TrimSpace(cell), ",") // "watching, then events"
		return cell
	}
	section := string(prose)
	section = section[strings.Index(section, "\n## Requests"):strings.Index(section, "\n## Calls")]
	for _, m := range operationRow.FindAllStringSubmatch(section, -1) {
		op := operationFields{Number: number(m[1]), Name: m[2], Request: name(m[3]), Response: name(m[4]), Event: eventsOf[Op(number(m[1]))]}
		if op.Event == "stream-item" { // its answers are events, and the response is empty
			op.Response = ""
		}
		for _, message := range []string{op.Request, op.Response, op.Event} {
			require.True(t, message == "" || f.Messages[message] != nil, "operation %s: no message %q", op.Name, message)
		}
		f.Operations = append(f.Operations, op)
	}
	require.Len(t, f.Operations, len(f.Numbers["op"]), "each operation of the schema has a row in PROTOCOL.md")
	for _, op := range f.Operations {
		require.Equal(t, f.Numbers["op"][strings.ReplaceAll(op.Name, " ", "-")], op.Number, op.Name)
	}
	text, err := json.MarshalIndent(f, "", " ")
	require.NoError(t, err)
	text = append(text, '\n')
	if *update {
		require.NoError(t, os.WriteFile("../fields.json", text, 0o644))
		return
	}
	old, err := os.ReadFile("../fields.json")
	require.NoError(t, err)
	require.Equal(t, string(text), string(old), "run this test with -update")
}
