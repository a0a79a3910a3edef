package message

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
)

// ruleName converts a Go name to its name in protocol.cddl: VersionInfo is version-info, PID is pid.
func ruleName(goName string) string {
	var b strings.Builder
	runes := []rune(goName)
	for i, r := range runes {
		begins := unicode.IsUpper(r) && i > 0 &&
			(unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if begins && goName != "DTypes" {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// The schema names every message with every key, marks keys optional that the encoder may omit, and names nothing else.
func TestSchemaNamesEveryKey(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../protocol.cddl")
	require.NoError(t, err)
	rules := map[string]string{}
	for _, m := range regexp.MustCompile(`(?ms)^([a-z0-9-]+) = \{\n(.*?)^\}`).FindAllStringSubmatch(string(text), -1) {
		rules[m[1]] = m[2]
	}
	seen := map[reflect.Type]bool{}
	var check func(typ reflect.Type)
	check = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice && typ != reflect.TypeFor[RawMessage]() {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] || typ == reflect.TypeFor[Storage]() {
			return
		}
		seen[typ] = true
		rule, ok := rules[ruleName(typ.Name())]
		require.True(t, ok, "protocol.cddl has no rule %s", ruleName(typ.Name()))
		require.Equal(t, typ.NumField(), len(regexp.MustCompile(`(?m)^  (\? )?\d+: `).FindAllString(rule, -1)), "keys of %s", typ.Name())
		for i := range typ.NumField() {
			f := typ.Field(i)
			tag := strings.Split(f.Tag.Get("cbor"), ",")
			key, err := strconv.Atoi(tag[0])
			require.NoError(t, err, "%s.%s has no integer key", typ.Name(), f.Name)
			mark := ""
			if len(tag) > 2 && tag[2] == "omitempty" {
				mark = `\? `
			}
			line := fmt.Sprintf(`(?m)^  %s%d: .*; %s$`, mark, key, ruleName(f.Name))
			require.Regexp(t, line, rule, "%s.%s", typ.Name(), f.Name)
			check(f.Type)
		}
	}
	for _, s := range samples() {
		check(reflect.TypeOf(s.value))
	}
	require.Equal(t, len(rules), len(seen), "protocol.cddl has rules for maps that no message is")
}

// The schema and PROTOCOL.md contain every number of the Go constants.
func TestSchemaNamesEveryNumber(t *testing.T) {
	t.Parallel()
	schema, err := os.ReadFile("../protocol.cddl")
	require.NoError(t, err)
	prose, err := os.ReadFile("../PROTOCOL.md")
	require.NoError(t, err)
	for code, name := range codeNames {
		require.Regexp(t, fmt.Sprintf(`(?m)^code-%s = %d$`, ruleName(name), code), string(schema))
		require.Regexp(t, fmt.Sprintf(`(?m)^\| %d \| %s \|`, code, name), string(prose))
	}
	for op, name := range opNames {
		if name == "" {
			continue // unassigned
		}
		require.Regexp(t, fmt.Sprintf(`(?m)^op-%s = %d$`, strings.ReplaceAll(name, " ", "-"), op), string(schema))
		require.Regexp(t, fmt.Sprintf(`(?m)^\| %d \| %s \|`, op, name), string(prose))
	}
	for kind := wire.KindHello; kind.Valid(); kind++ {
		require.Regexp(t, fmt.Sprintf(`(?m)^\| %d \| %s \|`, kind, kind), string(prose))
	}
	for state := LoadWaiting; state <= LoadFailed; state++ {
		word := state.String()
		if state == LoadRunning {
			word = "running"
		}
		require.Regexp(t, fmt.Sprintf(`(?m)^load-%s = %d$`, word, state), string(schema))
	}
	for kind := EventPublished; kind <= EventWithdrawn; kind++ {
		require.Regexp(t, fmt.Sprintf(`(?m)^event-%s = %d$`, kind, kind), string(schema))
	}
}
