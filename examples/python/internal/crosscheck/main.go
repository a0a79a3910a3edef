// Command crosscheck encodes and decodes messages of the protocol for the tests of the Python client, which compare the
// results. It reads lines from standard input and answers each with one line:
//
//	random NAME SEED     a random message of that rule of protocol.cddl, encoded, in hexadecimal
//	again NAME HEX       the message decoded and encoded again, in hexadecimal
//	names                the supported rules
//
// Invalid input is answered with "error: " and the reason.
package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"github.com/sharedtensor/sharedtensor/wire/message"
)

// messages holds the top-level messages; their parts are checked with them.
var messages = []any{
	message.Hello{}, message.Request{}, message.Error{}, message.ErrorDetails{}, message.Cancel{}, message.Goodbye{}, message.Ping{}, message.Pong{}, message.Acquire{},
	message.Acquired{}, message.Release{}, message.Released{}, message.Publish{}, message.Published{}, message.Withdraw{}, message.Rollback{}, message.List{}, message.Listed{}, message.Info{},
	message.InfoResult{}, message.Watch{}, message.Unwatch{}, message.Event{}, message.Call{}, message.Returned{}, message.EndpointsListed{}, message.ServerInfo{},
	message.Task{}, message.TaskInfo{}, message.TaskCancelled{}, message.Tasks{}, message.TasksListed{}, message.WatchTasks{}, message.TaskEvent{},
	message.InvalidateEndpoint{}, message.Invalidated{}, message.Object{}, message.ObjectInfo{}, message.Objects{}, message.ObjectsListed{}, message.ReleaseObjects{},
	message.ObjectsReleased{}, message.ObjectGone{}, message.StreamItem{}, message.StreamMore{}, message.Offer{}, message.Offering{}, message.OfferEvent{},
	message.Answer{},
}

func main() {
	types := map[string]reflect.Type{}
	for _, m := range messages {
		types[ruleName(reflect.TypeOf(m).Name())] = reflect.TypeOf(m)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		if lines.Text() == "names" {
			for name := range types {
				fmt.Print(name, " ")
			}
			fmt.Println()
			continue
		}
		answer, err := do(types, strings.Fields(lines.Text()))
		if err != nil {
			answer = "error: " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(answer)
	}
}

func do(types map[string]reflect.Type, words []string) (string, error) {
	if len(words) != 3 || types[words[1]] == nil {
		return "", fmt.Errorf("not understood: %v", words)
	}
	value := reflect.New(types[words[1]])
	if words[0] == "random" {
		seed, err := strconv.ParseUint(words[2], 10, 64)
		if err != nil {
			return "", err
		}
		fill(value.Elem(), rand.New(rand.NewPCG(seed, seed)), 3)
	} else {
		data, err := hex.DecodeString(words[2])
		if err != nil {
			return "", err
		}
		if err := message.Unmarshal(data, value.Interface()); err != nil {
			return "", err
		}
	}
	data, err := message.Marshal(value.Interface())
	return hex.EncodeToString(data), err
}

// fill sets the value to something random that the schema allows: a third of all fields stay empty.
func fill(value reflect.Value, random *rand.Rand, depth int) {
	if random.IntN(3) == 0 {
		return
	}
	switch value.Kind() {
	case reflect.Struct:
		for i := range value.NumField() {
			fill(value.Field(i), random, depth-1)
		}
	case reflect.Pointer:
		if depth > 0 {
			value.Set(reflect.New(value.Type().Elem()))
			fill(value.Elem(), random, depth-1)
		}
	case reflect.Slice:
		fillSlice(value, random, depth)
	case reflect.Array:
		for i := range value.Len() {
			value.Index(i).SetUint(uint64(random.IntN(256)))
		}
	case reflect.Map:
		value.Set(reflect.ValueOf(map[string]string{text(random): text(random), "z" + text(random): text(random)}))
	case reflect.String:
		value.SetString(text(random))
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		value.SetInt(random.Int64N(1<<(value.Type().Bits()-1)-1) >> random.IntN(value.Type().Bits()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		value.SetUint(random.Uint64() >> (64 - value.Type().Bits()) >> random.IntN(value.Type().Bits()))
	}
}

func fillSlice(value reflect.Value, random *rand.Rand, depth int) {
	switch {
	case value.Type() == reflect.TypeFor[message.RawMessage]():
		value.SetBytes(item(random))
	case value.Type().Elem().Kind() == reflect.Uint8:
		data := make([]byte, random.IntN(300))
		for i := range data {
			data[i] = byte(random.IntN(256))
		}
		value.SetBytes(data)
	case depth > 0:
		n := random.IntN(4)
		value.Set(reflect.MakeSlice(value.Type(), n, n))
		for i := range n {
			fill(value.Index(i), random, depth-1)
		}
	}
}

// item returns an encoded item of any kind, as in arguments, results and the data of errors.
func item(random *rand.Rand) []byte {
	values := []any{
		map[string]any{"x": random.NormFloat64(), "name": text(random), "half": 1.5}, []any{true, nil, -random.Int64N(1 << 62)}, text(random),
		random.Uint64(), float32(random.NormFloat64()), []byte{0, 255},
	}
	data, err := message.Marshal(values[random.IntN(len(values))])
	if err != nil {
		panic(err) // all of them have an encoding
	}
	return data
}

func text(random *rand.Rand) string {
	letters := []rune("abc/.\"\\ \n\x00äß漢字🙂")
	out := make([]rune, random.IntN(30))
	for i := range out {
		out[i] = letters[random.IntN(len(letters))]
	}
	return string(out)
}

// ruleName converts a Go name to its name in protocol.cddl: VersionInfo is version-info.
func ruleName(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
