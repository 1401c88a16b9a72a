package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Arg is what a client asked with.
type Arg struct {
	// Value of put, cas, add and append.
	Value string `json:"value"`
	// Version that cas compares with.
	Version uint64 `json:"version"`
	// Grant of the token that is shown with a request, or that a method on a lock names; 0: none.
	Grant uint64 `json:"grant"`
	// LeaseMs of lock and renew.
	LeaseMs int64 `json:"lease_ms"`
}

// Result is what a client was answered.
type Result struct {
	// Status is ok, not_found, condition_failed or not_allowed; of lock also held.
	Status string `json:"status"`
	// Value of get and take.
	Value string `json:"value"`
	// Version of the object; 0: the door tells none.
	Version uint64 `json:"version"`
	// Size after append; below 0: the door tells none.
	Size *int64 `json:"size"`
	// Grant of lock.
	Grant uint64 `json:"grant"`
}

// Record is a line of a history.
type Record struct {
	Client int    `json:"client"`
	Op     string `json:"op"`
	Key    string `json:"key"`
	Arg    Arg    `json:"arg"`
	// Result is absent where the outcome is unknown, or the request was refused without any effect.
	Result *Result `json:"result"`
	// Refused says why nothing was done.
	Refused string `json:"refused"`
	CallNs  int64  `json:"call_ns"`
	// ReturnNs is absent where the outcome is unknown.
	ReturnNs *int64 `json:"return_ns"`
}

// Input is what the models see of a request: also when it was under way, for leases are about time.
type Input struct {
	Op  string
	Arg Arg
	// CallNs and ReturnNs bound when it was decided; ReturnNs is the end of time where the outcome is unknown.
	CallNs, ReturnNs int64
}

// end is the operation behind the last answer: what is unknown and comes later had no effect that anybody saw.
const end = "end"

// read gives the records of a history.
func read(from io.Reader) ([]Record, error) {
	var records []Record
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	for number := 1; lines.Scan(); number++ {
		var record Record
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if modelOf(record.Key) == nil {
			return nil, fmt.Errorf("line %d: no model for key %q", number, record.Key)
		}
		if !knownOps[record.Op] {
			return nil, fmt.Errorf("line %d: no operation %q", number, record.Op)
		}
		if record.Result != nil && (record.ReturnNs == nil || *record.ReturnNs < record.CallNs) {
			return nil, fmt.Errorf("line %d: an answer without its time, or before the request", number)
		}
		records = append(records, record)
	}
	return records, lines.Err()
}

var knownOps = map[string]bool{
	"get": true, "put": true, "cas": true, "add": true, "append": true, "take": true, "remove": true,
	"lock": true, "renew": true, "unlock": true, "check": true,
}

// onlyReads tells operations that change nothing: without an answer they say nothing. A get that shows a token leaves it.
func (r *Record) onlyReads() bool {
	return r.Op == "check" || r.Op == "get" && r.Arg.Grant == 0
}

// modelOf gives the model of a key, which its name begins with; none: nil.
func modelOf(key string) *porcupine.Model {
	switch kind := strings.SplitN(key, "-", 2)[0]; kind {
	case "object", "guarded":
		return &objectModel
	case "lock":
		return &lockModel
	default:
		return nil
	}
}

// partition gives the operations of each key as the models want them, keys in order of appearance.
func partition(records []Record) (keys []string, operations map[string][]porcupine.Operation, unknown int) {
	operations = map[string][]porcupine.Operation{}
	last := map[string]int64{}
	for _, record := range records {
		if _, there := last[record.Key]; !there {
			keys = append(keys, record.Key)
			last[record.Key] = math.MinInt64
		}
		if at := record.ReturnNs; at != nil && *at > last[record.Key] {
			last[record.Key] = *at
		}
		if record.CallNs > last[record.Key] {
			last[record.Key] = record.CallNs
		}
	}
	for _, record := range records {
		if record.Refused != "" || record.Result == nil && record.onlyReads() {
			continue
		}
		input := Input{Op: record.Op, Arg: record.Arg, CallNs: record.CallNs, ReturnNs: math.MaxInt64}
		operation := porcupine.Operation{ClientId: record.Client, Call: record.CallNs, Return: last[record.Key] + 3}
		if record.Result == nil {
			unknown++
			operation.Output = (*Result)(nil)
		} else {
			input.ReturnNs, operation.Return = *record.ReturnNs, *record.ReturnNs
			operation.Output = record.Result
		}
		operation.Input = input
		operations[record.Key] = append(operations[record.Key], operation)
	}
	for _, key := range keys {
		at := last[key]
		operations[key] = append(operations[key], porcupine.Operation{
			ClientId: 0, Input: Input{Op: end}, Output: (*Result)(nil), Call: at + 1, Return: at + 2,
		})
	}
	return keys, operations, unknown
}
