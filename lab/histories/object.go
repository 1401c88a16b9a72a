package main

import (
	"fmt"
	"strconv"

	"github.com/anishathalye/porcupine"
)

// object is the state of one key: a register with a version, and the highest token that was shown.
type object struct {
	// ended: behind the last answer.
	ended   bool
	present bool
	value   string
	// version is that of the last change, or, unless it is exact, one that the last change's is above.
	version uint64
	exact   bool
	// guard is the grant of the highest token that was shown; 0: none.
	guard uint64
	// unseen: only requests without an answer have been here since the last answer.
	unseen bool
}

var objectModel = porcupine.Model{
	Init: func() interface{} { return object{} },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		legal, next := stepObject(state.(object), input.(Input), output.(*Result))
		return legal, next
	},
	DescribeOperation: func(input, output interface{}) string {
		return describe(input.(Input), output.(*Result))
	},
	DescribeState: func(state interface{}) string {
		s := state.(object)
		mark := ">"
		if s.exact {
			mark = ""
		}
		value := "absent"
		if s.present {
			value = strconv.Quote(s.value)
		}
		return fmt.Sprintf("%s, version %s%d, guard %d", value, mark, s.version, s.guard)
	},
}

// seen takes a version that was told of the object as it is.
func (s object) seen(version uint64) (bool, object) {
	if version == 0 {
		return true, s
	}
	if s.exact {
		return version == s.version, s
	}
	if version <= s.version {
		return false, s
	}
	s.version, s.exact = version, true
	return true, s
}

// changed gives the object another value and a version, which is higher than all before; 0: it was not told.
func (s object) changed(present bool, value string, version, grant uint64) (bool, object) {
	if version != 0 && version <= s.version {
		return false, s
	}
	s.exact = version != 0
	if s.exact {
		s.version = version
	}
	s.present, s.value = present, value
	if grant != 0 {
		s.guard = grant
	}
	return true, s
}

// refusal is what a request with this token, or with none (0), must be answered; empty: it is let through.
func (s object) refusal(grant uint64) string {
	switch {
	case grant == 0 && s.guard != 0:
		return "not_allowed"
	case grant < s.guard:
		return "condition_failed"
	default:
		return ""
	}
}

// stepObject leaves out what need not be tried: where nobody saw what requests without an answer did, before it was
// overwritten or the history ended, they may as well come behind the last answer, where they have no effect.
func stepObject(s object, input Input, result *Result) (bool, object) {
	if s.unseen && (input.Op == end || input.Op == "put" && s.refusal(input.Arg.Grant) == "") {
		return false, s
	}
	if input.Op == end {
		s.ended = true
		return true, s
	}
	if result == nil {
		legal, next := stepUnknown(s, input)
		next.unseen = !s.ended
		return legal, next
	}
	s.unseen = false
	arg := input.Arg
	if refusal := s.refusal(arg.Grant); refusal != "" && (input.Op != "get" || arg.Grant != 0) {
		// A condition that does not hold may be told first.
		return result.Status == refusal || input.Op == "add" && s.present && result.Status == "condition_failed", s
	}
	switch input.Op {
	case "get":
		return stepGet(s, arg, result)
	case "cas", "add":
		return stepConditional(s, input, result)
	case "put":
		if result.Status != "ok" {
			return false, s
		}
		return s.changed(true, arg.Value, result.Version, arg.Grant)
	case "append":
		value := s.value + arg.Value
		if result.Status != "ok" || result.Size != nil && *result.Size != int64(len(value)) {
			return false, s
		}
		return s.changed(true, value, result.Version, arg.Grant)
	case "take", "remove":
		if !s.present {
			return result.Status == "not_found", s
		}
		if result.Status != "ok" || input.Op == "take" && result.Value != s.value {
			return false, s
		}
		return s.changed(false, "", result.Version, arg.Grant)
	default:
		return false, s
	}
}

// stepGet leaves the token it shows; an object that learns a token has another version.
func stepGet(s object, arg Arg, result *Result) (bool, object) {
	leaves := arg.Grant > s.guard
	if leaves {
		s.guard = arg.Grant
	}
	if !s.present {
		return result.Status == "not_found", s
	}
	if result.Status != "ok" || result.Value != s.value {
		return false, s
	}
	if leaves {
		return s.changed(true, s.value, result.Version, arg.Grant)
	}
	return s.seen(result.Version)
}

// stepConditional is a change that is made only where the object is as the client said.
func stepConditional(s object, input Input, result *Result) (bool, object) {
	arg := input.Arg
	if result.Status == "ok" {
		legal := !s.present
		if input.Op == "cas" {
			if !s.present {
				return false, s
			}
			legal, s = s.seen(arg.Version)
		}
		if !legal {
			return false, s
		}
		return s.changed(true, arg.Value, result.Version, arg.Grant)
	}
	if result.Status != "condition_failed" && !(input.Op == "cas" && result.Status == "not_found" && !s.present) {
		return false, s
	}
	if input.Op == "add" {
		if !s.present {
			return false, s
		}
		return s.seen(result.Version)
	}
	if !s.present {
		return result.Version == 0, s
	}
	// It was refused, so the version is another one than the client named.
	if s.exact && s.version == arg.Version || result.Version == arg.Version {
		return false, s
	}
	return s.seen(result.Version)
}

// stepUnknown has the effect of a request whose outcome nobody knows. Where it would have none it may as well come
// behind the last answer: so the checker need not try it everywhere.
func stepUnknown(s object, input Input) (bool, object) {
	if s.ended {
		return true, s
	}
	arg := input.Arg
	if s.refusal(arg.Grant) != "" {
		return false, s
	}
	switch input.Op {
	case "get":
		if arg.Grant == s.guard {
			return false, s
		}
		return s.changed(s.present, s.value, 0, arg.Grant)
	case "put":
		return s.changed(true, arg.Value, 0, arg.Grant)
	case "append":
		return s.changed(true, s.value+arg.Value, 0, arg.Grant)
	case "add":
		if s.present {
			return false, s
		}
		return s.changed(true, arg.Value, 0, arg.Grant)
	case "cas":
		legal, was := s.seen(arg.Version)
		if !s.present || !legal {
			return false, s
		}
		return was.changed(true, arg.Value, 0, arg.Grant)
	case "take", "remove":
		if !s.present {
			return false, s
		}
		return s.changed(false, "", 0, arg.Grant)
	default:
		return false, s
	}
}

// describe is an operation as people read it.
func describe(input Input, result *Result) string {
	if input.Op == end {
		return "the end"
	}
	text := input.Op
	if arg := input.Arg; arg.Value != "" {
		text += " " + strconv.Quote(arg.Value)
	}
	if input.Op == "cas" {
		text += fmt.Sprintf(" at version %d", input.Arg.Version)
	}
	if input.Arg.Grant != 0 {
		text += fmt.Sprintf(" by grant %d", input.Arg.Grant)
	}
	if input.Arg.LeaseMs != 0 {
		text += fmt.Sprintf(" for %d ms", input.Arg.LeaseMs)
	}
	if result == nil {
		return text + ": outcome unknown"
	}
	text += ": " + result.Status
	if result.Value != "" {
		text += " " + strconv.Quote(result.Value)
	}
	if result.Version != 0 {
		text += fmt.Sprintf(", version %d", result.Version)
	}
	if result.Grant != 0 {
		text += fmt.Sprintf(", grant %d", result.Grant)
	}
	return text
}
