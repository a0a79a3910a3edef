package module

import (
	"fmt"
)

// Keys of a state dict's metadata that have a meaning here. They cross with the manifest and stand in safetensors files
// like any other metadata.
const (
	compatibilityKey = "sharedtensor.compatibility"
	noteKey          = "sharedtensor.note." // followed by the name of a tensor
)

// Notes that say what a tensor is to the module it belongs to.
const (
	NoteParameter = "parameter" // it is trained
	NoteBuffer    = "buffer"    // it is part of the state and not trained
)

// Compatibility is the key that the maker of the state dict has set, empty where none is set. It is opaque: readers
// that need a certain layout, quantisation or partition compare it with the key they expect.
func (sd *StateDict) Compatibility() string { return sd.Metadata[compatibilityKey] }

// SetCompatibility sets the key, or removes it where key is empty. It is kept in Metadata. Like [StateDict.Set] it
// needs the state dict for itself.
func (sd *StateDict) SetCompatibility(key string) { sd.setMetadata(compatibilityKey, key) }

// Note is what the maker of the state dict has noted about a tensor, such as [NoteBuffer]; empty where nothing is
// noted.
func (sd *StateDict) Note(name string) string { return sd.Metadata[noteKey+name] }

// SetNote notes something about a tensor, or removes the note where it is empty. Notes are kept in Metadata, and go
// with the tensor in [StateDict.Rename] and [StateDict.Take]. Like [StateDict.Set] it needs the state dict for itself.
// There being no tensor of that name is [ErrName].
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

// moveNote gives the note about one name to another; an empty one drops it.
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
