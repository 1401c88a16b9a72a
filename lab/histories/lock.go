package main

import (
	"fmt"
	"math"

	"github.com/anishathalye/porcupine"
)

// skewNs is how far the node's clock, in whole milliseconds, may lie beside the clients'.
const skewNs = int64(20e6)

// lock is the state of one lock. A lease runs out by time: it is surely over behind `until`, and surely not before
// `from`. So who is told `held` must have asked before `until`, and a new grant must be told behind `from`.
type lock struct {
	ended bool
	held  bool
	// grant of the hold; 0: nobody was told it.
	grant       uint64
	from, until int64
	// last is the highest grant that was told: the next one is above it.
	last uint64
}

var lockModel = porcupine.Model{
	Init: func() interface{} { return lock{} },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		legal, next := stepLock(state.(lock), input.(Input), output.(*Result))
		return legal, next
	},
	DescribeOperation: func(input, output interface{}) string {
		return describe(input.(Input), output.(*Result))
	},
	DescribeState: func(state interface{}) string {
		s := state.(lock)
		if !s.held {
			return fmt.Sprintf("free, last grant %d", s.last)
		}
		return fmt.Sprintf("held by grant %d, last grant %d", s.grant, s.last)
	},
}

// mayBeHeld tells whether the hold's lease may still last for a request that was asked then.
func (s lock) mayBeHeld(callNs int64) bool {
	return s.held && callNs <= add(s.until, skewNs)
}

// mayBeFree tells whether there may be no hold, or its lease be over, for a request that was answered then.
func (s lock) mayBeFree(returnNs int64) bool {
	return !s.held || add(returnNs, skewNs) >= s.from
}

// lease begins anew with a request.
func (s lock) lease(input Input) lock {
	lease := input.Arg.LeaseMs * 1e6
	s.from, s.until = add(input.CallNs, lease), add(input.ReturnNs, lease)
	return s
}

func stepLock(s lock, input Input, result *Result) (bool, lock) {
	if input.Op == end {
		s.ended = true
		return true, s
	}
	if result == nil {
		return stepUnknownLock(s, input)
	}
	if input.Op == "lock" {
		switch result.Status {
		case "held":
			return s.mayBeHeld(input.CallNs), s
		case "ok":
			if !s.mayBeFree(input.ReturnNs) || result.Grant <= s.last {
				return false, s
			}
			s.held, s.grant, s.last = true, result.Grant, result.Grant
			return true, s.lease(input)
		default:
			return false, s
		}
	}
	mine := s.held && s.grant == input.Arg.Grant
	if result.Status == "condition_failed" {
		if mine && !s.mayBeFree(input.ReturnNs) {
			return false, s
		}
		s.held = s.held && !mine
		return true, s
	}
	if result.Status != "ok" || !mine || !s.mayBeHeld(input.CallNs) {
		return false, s
	}
	switch input.Op {
	case "check":
		return true, s
	case "renew":
		return true, s.lease(input)
	case "unlock":
		s.held = false
		return true, s
	default:
		return false, s
	}
}

// stepUnknownLock has the effect of a request whose outcome nobody knows, as stepUnknown has for objects.
func stepUnknownLock(s lock, input Input) (bool, lock) {
	if s.ended {
		return true, s
	}
	mine := s.held && s.grant == input.Arg.Grant && input.Arg.Grant != 0
	switch input.Op {
	case "lock":
		// It was granted when the hold before it, if there was one, was over.
		if s.held && s.from > input.CallNs {
			input.CallNs = s.from - skewNs
		}
		s.held, s.grant = true, 0
		return true, s.lease(input)
	case "renew":
		return mine, s.lease(input)
	case "unlock":
		s.held = false
		return mine, s
	default:
		return false, s
	}
}

// add stays at the end of time.
func add(at, more int64) int64 {
	if at > math.MaxInt64-more {
		return math.MaxInt64
	}
	return at + more
}
