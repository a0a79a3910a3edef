package command

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// printer prints results of endpoints as text or as JSON.
type printer struct {
	w     io.Writer
	json  bool
	lines bool          // one line of JSON for each result
	host  driver.Device // for copies of tensors whose elements are printed as JSON
}

// take prints a result and closes its tensors.
func (p printer) take(v any) error {
	return errors.Join(p.print(v), closeTensors(v))
}

func (p printer) print(v any) error {
	if !p.json {
		var b strings.Builder
		if err := writeValue(&b, v, ""); err != nil {
			return err
		}
		_, err := io.WriteString(p.w, strings.TrimSuffix(b.String(), "\n")+"\n")
		return err
	}
	v, err := p.jsonValue(v)
	if err != nil {
		return err
	}
	if p.lines {
		return term.PrintJSONLine(p.w, v)
	}
	return term.PrintJSON(p.w, v)
}

// closeTensors closes the tensors in a result that was decoded without a type.
func closeTensors(v any) error {
	var errs []error
	switch v := v.(type) {
	case *tensor.Tensor:
		return v.Close()
	case *module.StateDict:
		return v.Close()
	case []any:
		for _, below := range v {
			errs = append(errs, closeTensors(below))
		}
	case map[string]any:
		for _, below := range v {
			errs = append(errs, closeTensors(below))
		}
	}
	return errors.Join(errs...)
}

// writeValue writes a value as text: fields as "name: value" on separate lines, with nested values indented.
func writeValue(b *strings.Builder, v any, indent string) error {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			b.WriteString(indent + term.Printable(key) + ":")
			if err := writeBelow(b, v[key], indent); err != nil {
				return err
			}
		}
		if len(v) == 0 {
			b.WriteString(indent + "{}\n")
		}
		return nil
	case []any:
		if !slices.ContainsFunc(v, nested) {
			b.WriteString(indent + scalarList(v) + "\n")
			return nil
		}
		for _, item := range v {
			b.WriteString(indent + "-")
			if err := writeBelow(b, item, indent); err != nil {
				return err
			}
		}
		return nil
	case *module.StateDict:
		return writeStateDict(b, v, indent)
	}
	writeIndented(b, scalar(v), indent)
	return nil
}

// writeBelow writes a value after "name:" or "-": on the same line if it has only one line.
func writeBelow(b *strings.Builder, v any, indent string) error {
	var below strings.Builder
	if err := writeValue(&below, v, ""); err != nil {
		return err
	}
	text := strings.TrimSuffix(below.String(), "\n")
	if _, isMap := v.(map[string]any); !isMap && !strings.Contains(text, "\n") {
		b.WriteString(" " + text + "\n")
		return nil
	}
	b.WriteByte('\n')
	writeIndented(b, text, indent+"  ")
	return nil
}

func writeIndented(b *strings.Builder, text, indent string) {
	for line := range strings.Lines(text) {
		b.WriteString(indent + strings.TrimSuffix(line, "\n") + "\n")
	}
	if text == "" {
		b.WriteString(indent + "\n")
	}
}

// nested reports whether a value needs more than one line.
func nested(v any) bool {
	switch v := v.(type) {
	case map[string]any, []any, *tensor.Tensor, *module.StateDict:
		return true
	case string:
		return strings.Contains(v, "\n")
	}
	return false
}

// scalarList formats a list without nested values on one line.
func scalarList(list []any) string {
	items := make([]string, len(list))
	for i, v := range list {
		items[i] = scalar(v)
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// scalar formats a value without fields. It makes each line of the owner's text safe for a terminal.
func scalar(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		lines := strings.Split(v, "\n")
		for i := range lines {
			lines[i] = term.Printable(lines[i])
		}
		return strings.Join(lines, "\n")
	case []byte:
		if len(v) > 64 {
			return fmt.Sprintf("%x… (%d bytes)", v[:32], len(v))
		}
		return hex.EncodeToString(v)
	case *tensor.Tensor:
		return v.String()
	}
	return term.Printable(fmt.Sprint(v))
}

// writeStateDict writes a heading and one line for each tensor.
func writeStateDict(b *strings.Builder, sd *module.StateDict, indent string) error {
	var d description
	m, _ := sd.Manifest()
	if err := d.fill(m); err != nil {
		return err
	}
	fmt.Fprintf(b, "%sstate dict of %s, %s\n", indent, term.Count(len(d.Tensors), "tensor"), term.FormatBytes(d.Bytes))
	if len(d.Tensors) == 0 {
		return nil
	}
	var rows bytes.Buffer
	if err := d.table().Write(&rows, 0); err != nil {
		return err
	}
	writeIndented(b, rows.String(), indent+"  ")
	return nil
}
