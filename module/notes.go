package module

import (
	"fmt"
)

// Metadata keys with a meaning here. They are part of the manifest and of safetensors files like other metadata.
const (
	compatibilityKey = "sharedtensor.compatibility"
	noteKey          = "sharedtensor.note." // followed by the name of a tensor
)

// Notes about the role of a tensor in its module.
const (
	NoteParameter = "parameter" // trained
	NoteBuffer    = "buffer"    // part of the state but not trained
)

// Compatibility returns the key set by the creator of the state dict, or "". It is opaque: readers that require a
// certain layout, quantisation or partition compare it with the expected key.
func (sd *StateDict) Compatibility() string { return sd.Metadata[compatibilityKey] }

// SetCompatibility sets the key, or removes it if key is empty. It is stored in Metadata. Like [StateDict.Set] it
// requires exclusive access.
func (sd *StateDict) SetCompatibility(key string) { sd.setMetadata(compatibilityKey, key) }

// Note returns the creator's note about a tensor, such as [NoteBuffer], or "".
func (sd *StateDict) Note(name string) string { return sd.Metadata[noteKey+name] }

// SetNote sets a note about a tensor, or removes it if note is empty. Notes are stored in Metadata and follow the
// tensor in [StateDict.Rename] and [StateDict.Take]. Like [StateDict.Set] it requires exclusive access. An unknown name
// is [ErrName].
func (sd *StateDict) SetNote(name, note string) error {
	if _, found := sd.index.find(sd.names, name); !found {
		return fmt.Errorf("%w: there is no tensor %s", ErrName, quote(name))
	}
	sd.setMetadata(noteKey+name, note)
	return nil
}

func (sd *StateDict) setMetadata(key, value string) {
	switch {
	case value == "":
		delete(sd.Metadata, key)
	case sd.Metadata == nil:
		sd.Metadata = map[string]string{key: value}
	default:
		sd.Metadata[key] = value
	}
}

// moveNote moves the note about one name to another; an empty name drops it.
func (sd *StateDict) moveNote(from, to string) {
	note := sd.Note(from)
	if note == "" {
		return
	}
	delete(sd.Metadata, noteKey+from)
	if to != "" {
		sd.Metadata[noteKey+to] = note
	}
}
