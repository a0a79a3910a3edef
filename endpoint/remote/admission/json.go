package admission

// Estimates of the memory of decoded JSON, in bytes.
const (
	jsonObject = 256
	jsonList   = 96
	jsonField  = 128
)

// JSONBytes estimates the memory of decoded JSON without decoding it. Small values take many times the memory of their text.
// element is the memory of an element of a list.
func JSONBytes(text []byte, element int64) (total int64) {
	total = int64(len(text))
	inText := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inText:
			if c == '\\' {
				i++
			} else if c == '"' {
				inText = false
			}
		case c == '"':
			inText = true
		case c == '{':
			total += jsonObject
		case c == '[':
			total += jsonList
		case c == ':':
			total += jsonField
		case c == ',':
			total += element
		}
	}
	return total
}
