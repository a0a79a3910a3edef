package torchsave

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
)

// Pickle instructions that files of plain tensors use.
const (
	opMark         = '('
	opStop         = '.'
	opPop          = '0'
	opNone         = 'N'
	opInt4         = 'J'
	opInt1         = 'K'
	opInt2         = 'M'
	opLong1        = 0x8a
	opFloat        = 'G'
	opTrue         = 0x88
	opFalse        = 0x89
	opString4      = 'X'
	opString1      = 0x8c
	opEmptyTuple   = ')'
	opTuple        = 't'
	opTuple1       = 0x85
	opTuple2       = 0x86
	opTuple3       = 0x87
	opEmptyList    = ']'
	opAppend       = 'a'
	opAppends      = 'e'
	opEmptyDict    = '}'
	opSetItem      = 's'
	opSetItems     = 'u'
	opGlobal       = 'c'
	opStackGlobal  = 0x93
	opReduce       = 'R'
	opBuild        = 'b'
	opPersistentID = 'Q'
	opPut1         = 'q'
	opPut4         = 'r'
	opGet1         = 'h'
	opGet4         = 'j'
	opMemoize      = 0x94
	opProto        = 0x80
	opFrame        = 0x95
)

// maxProtocol is the newest supported pickle version.
const maxProtocol = 5

// global is the name of a Python object. It is used only for comparison.
type global struct{ module, name string }

func (g global) String() string { return g.module + "." + g.name }

// interpreter interprets a pickle. It has a stack of values, the positions of marks in the stack, and a memo.
type interpreter struct {
	code    []byte
	objects int // limit on the number of values in stack, memo, lists and dictionaries
	held    int // number of values in lists and dictionaries
	stack   []any
	marks   []int
	memo    map[uint32]any
}

// interpret returns the value of a pickle.
func interpret(code []byte, objects int) (any, error) {
	in := &interpreter{code: code, objects: objects, memo: make(map[uint32]any)}
	for {
		op, err := in.byte()
		if err != nil {
			return nil, err
		}
		if op == opStop {
			break
		}
		if err := in.step(op); err != nil {
			return nil, err
		}
		if len(in.stack)+len(in.marks)+len(in.memo)+in.held > in.objects {
			return nil, fmt.Errorf("%w: more than %d values in a pickle", ErrLimit, in.objects)
		}
	}
	root, err := in.pop()
	if err != nil {
		return nil, err
	}
	if err := contain(root); err != nil { // a value that contains itself
		return nil, err
	}
	return root, checkDepth(root, maxDepth)
}

// maxDepth limits the nesting of lists and dictionaries, which protects recursive functions.
const maxDepth = 100

func checkDepth(value any, left int) error {
	var children [2][]any
	switch value := value.(type) {
	case *List:
		children[0] = value.Items
	case *Dict:
		children = [2][]any{value.Keys, value.Values}
	default:
		return nil
	}
	if left == 0 {
		return fmt.Errorf("%w: values nested deeper than %d", ErrLimit, maxDepth)
	}
	for _, list := range children {
		for _, child := range list {
			if err := checkDepth(child, left-1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (in *interpreter) step(op byte) error {
	switch op {
	case opProto:
		version, err := in.byte()
		if err == nil && version > maxProtocol {
			err = fmt.Errorf("%w: version %d of pickle", ErrFormat, version)
		}
		return err
	case opFrame:
		_, err := in.take(8)
		return err
	case opMark:
		in.marks = append(in.marks, len(in.stack))
		return nil
	case opPop:
		_, err := in.pop()
		return err
	case opNone:
		return in.push(nil)
	case opTrue, opFalse:
		return in.push(op == opTrue)
	case opInt1, opInt2, opInt4, opLong1, opFloat:
		return in.number(op)
	case opString1, opString4:
		return in.string(op)
	case opEmptyTuple, opEmptyList, opTuple, opTuple1, opTuple2, opTuple3:
		return in.list(op)
	case opEmptyDict:
		return in.push(&Dict{})
	case opAppend, opAppends, opSetItem, opSetItems:
		return in.fill(op)
	case opGlobal, opStackGlobal:
		return in.global(op)
	case opReduce:
		return in.reduce()
	case opBuild:
		return in.build()
	case opPersistentID:
		return in.persistentID()
	case opPut1, opPut4, opGet1, opGet4, opMemoize:
		return in.memory(op)
	}
	return fmt.Errorf("%w: instruction 0x%02x", ErrRefused, op)
}

func (in *interpreter) number(op byte) error {
	size := map[byte]int{opInt1: 1, opInt2: 2, opInt4: 4, opFloat: 8}[op]
	if op == opLong1 {
		n, err := in.byte()
		if err != nil {
			return err
		}
		if n > 8 {
			return fmt.Errorf("%w: a number of %d bytes", ErrRefused, n)
		}
		size = int(n)
	}
	b, err := in.take(size)
	if err != nil {
		return err
	}
	switch op {
	case opInt4:
		return in.push(int64(int32(binary.LittleEndian.Uint32(b))))
	case opFloat:
		return in.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
	}
	var wide [8]byte
	copy(wide[:], b)
	if op == opLong1 && size > 0 && b[size-1] >= 0x80 {
		copy(wide[size:], bytes.Repeat([]byte{0xff}, 8-size)) // two's complement
	}
	return in.push(int64(binary.LittleEndian.Uint64(wide[:])))
}

func (in *interpreter) string(op byte) error {
	n := 0
	if op == opString1 {
		b, err := in.byte()
		if err != nil {
			return err
		}
		n = int(b)
	} else {
		b, err := in.take(4)
		if err != nil {
			return err
		}
		n = int(binary.LittleEndian.Uint32(b))
	}
	b, err := in.take(n)
	if err != nil {
		return err
	}
	if !utf8.Valid(b) {
		return fmt.Errorf("%w: a string that is not UTF-8", ErrFormat)
	}
	return in.push(string(b))
}

// list replaces the values after the last mark, or the last few values, with a list or tuple.
func (in *interpreter) list(op byte) error {
	var items []any
	var err error
	switch op {
	case opTuple:
		items, err = in.popMark()
	case opTuple1, opTuple2, opTuple3:
		items, err = in.popN(int(op-opTuple1) + 1)
	}
	if err != nil {
		return err
	}
	if err := contain(items...); err != nil {
		return err
	}
	in.held += len(items)
	return in.push(&List{Items: items})
}

// fill adds values to the list or dictionary below them on the stack.
func (in *interpreter) fill(op byte) error {
	var items []any
	var err error
	switch op {
	case opAppend:
		items, err = in.popN(1)
	case opSetItem:
		items, err = in.popN(2)
	default:
		items, err = in.popMark()
	}
	if err != nil {
		return err
	}
	if err := contain(items...); err != nil {
		return err
	}
	if len(in.stack) == 0 {
		return errStack
	}
	switch into := in.stack[len(in.stack)-1].(type) {
	case *List:
		if op == opAppend || op == opAppends {
			into.Items = append(into.Items, items...)
			in.held += len(items)
			return nil
		}
	case *Dict:
		if (op == opSetItem || op == opSetItems) && len(items)%2 == 0 {
			for i := 0; i < len(items); i += 2 {
				into.Keys = append(into.Keys, items[i])
				into.Values = append(into.Values, items[i+1])
			}
			in.held += len(items)
			return nil
		}
	}
	return errStack
}

func (in *interpreter) global(op byte) error {
	if op == opGlobal {
		module, err := in.line()
		if err != nil {
			return err
		}
		name, err := in.line()
		if err != nil {
			return err
		}
		return in.push(global{module, name})
	}
	pair, err := in.popN(2)
	if err != nil {
		return err
	}
	module, ok1 := pair[0].(string)
	name, ok2 := pair[1].(string)
	if !ok1 || !ok2 {
		return errStack
	}
	return in.push(global{module, name})
}

// reduce replaces a function and its arguments with the result.
func (in *interpreter) reduce() error {
	pair, err := in.popN(2)
	if err != nil {
		return err
	}
	function, ok1 := pair[0].(global)
	args, ok2 := pair[1].(*List)
	if !ok1 || !ok2 {
		return fmt.Errorf("%w: a call of a %s", ErrRefused, kindOf(pair[0]))
	}
	result, err := call(function, args.Items)
	if err != nil {
		return err
	}
	in.replace(args, result)
	return in.push(result)
}

// build drops the attributes of a state dict (the versions of its modules). Other objects must not have attributes.
func (in *interpreter) build() error {
	if _, err := in.pop(); err != nil {
		return err
	}
	if len(in.stack) == 0 {
		return errStack
	}
	if _, ok := in.stack[len(in.stack)-1].(*Dict); !ok {
		return fmt.Errorf("%w: a %s with attributes", ErrRefused, kindOf(in.stack[len(in.stack)-1]))
	}
	return nil
}

func (in *interpreter) persistentID() error {
	id, err := in.pop()
	if err != nil {
		return err
	}
	s, err := storageOf(id)
	if err != nil {
		return err
	}
	in.free(id)
	return in.push(s)
}

// replace empties the arguments of a call, which the memo may still refer to, and counts the values of the result.
func (in *interpreter) replace(args *List, result any) {
	switch result := result.(type) {
	case *List: // torch.Size: the values of the first argument
		in.empty(args.Items[0])
		in.held += len(result.Items)
	case *Dict: // OrderedDict: the values in the pairs of the first argument, if any
		for _, arg := range args.Items {
			for _, pair := range arg.(*List).Items { //nolint:forcetypeassert // orderedDict checked both
				in.empty(pair)
			}
			in.empty(arg)
		}
		in.held += len(result.Keys) + len(result.Values)
	default: // a tensor description
		in.free(args)
		return
	}
	in.empty(args)
}

// empty drops the values of a list.
func (in *interpreter) empty(value any) {
	if list, ok := value.(*List); ok {
		in.held -= len(list.Items)
		list.Items = nil
	}
}

// free drops the values of a list and of nested lists.
func (in *interpreter) free(value any) {
	list, ok := value.(*List)
	if !ok {
		return
	}
	items := list.Items
	in.empty(list)
	for _, item := range items {
		in.free(item)
	}
}

func (in *interpreter) memory(op byte) error {
	var at uint32
	switch op {
	case opMemoize:
		at = uint32(len(in.memo))
	case opPut1, opGet1:
		b, err := in.byte()
		if err != nil {
			return err
		}
		at = uint32(b)
	default:
		b, err := in.take(4)
		if err != nil {
			return err
		}
		at = binary.LittleEndian.Uint32(b)
	}
	if op == opGet1 || op == opGet4 {
		value, ok := in.memo[at]
		if !ok {
			return errStack
		}
		return in.push(value)
	}
	if len(in.stack) == 0 {
		return errStack
	}
	in.memo[at] = in.stack[len(in.stack)-1]
	return nil
}

// errStack reports a pickle that uses missing values.
var errStack = fmt.Errorf("%w: an invalid pickle", ErrFormat)

// contain records that values are now contained in another value. A list or dictionary may have only one container,
// otherwise a few bytes of pickle could describe a huge or infinite value. Tensors may be shared.
func contain(values ...any) error {
	for _, value := range values {
		var contained *bool
		switch value := value.(type) {
		case *List:
			contained = &value.contained
		case *Dict:
			contained = &value.contained
		default:
			continue
		}
		if *contained {
			return fmt.Errorf("%w: a %s with two containers", ErrRefused, kindOf(value))
		}
		*contained = true
	}
	return nil
}

func (in *interpreter) push(value any) error {
	in.stack = append(in.stack, value)
	return nil
}

func (in *interpreter) pop() (any, error) {
	items, err := in.popN(1)
	if err != nil {
		return nil, err
	}
	return items[0], nil
}

// popN removes the last n values, all of which must be above the last mark.
func (in *interpreter) popN(n int) ([]any, error) {
	floor := 0
	if len(in.marks) > 0 {
		floor = in.marks[len(in.marks)-1]
	}
	at := len(in.stack) - n
	if at < floor {
		return nil, errStack
	}
	return in.cut(at), nil
}

func (in *interpreter) popMark() ([]any, error) {
	if len(in.marks) == 0 {
		return nil, errStack
	}
	at := in.marks[len(in.marks)-1]
	in.marks = in.marks[:len(in.marks)-1]
	return in.cut(at), nil
}

func (in *interpreter) cut(at int) []any {
	items := append([]any(nil), in.stack[at:]...)
	clear(in.stack[at:])
	in.stack = in.stack[:at]
	return items
}

func (in *interpreter) byte() (byte, error) {
	b, err := in.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

func (in *interpreter) take(n int) ([]byte, error) {
	if n > len(in.code) {
		return nil, fmt.Errorf("%w: a pickle that ends early", ErrFormat)
	}
	b := in.code[:n]
	in.code = in.code[n:]
	return b, nil
}

func (in *interpreter) line() (string, error) {
	end := bytes.IndexByte(in.code, '\n')
	if end < 0 || end > 256 {
		return "", fmt.Errorf("%w: a name without an end", ErrFormat)
	}
	line := string(in.code[:end])
	in.code = in.code[end+1:]
	if !utf8.ValidString(line) {
		return "", fmt.Errorf("%w: a name that is not UTF-8", ErrFormat)
	}
	return line, nil
}
