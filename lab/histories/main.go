// Histories checks whether histories of operations on a herd (NDJSON, FORMATS.md) are linearizable, key by key: each
// object as a register with versions and guards, each lock by its grants and leases. `herd-lab histories` runs it.
//
// For each file it prints one line of JSON. It exits with 1 if a history is illegal, with 2 if one cannot be read.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verdict is what is printed of a history.
type Verdict struct {
	File string `json:"file"`
	// Verdict is ok, illegal or unknown: the time was over.
	Verdict string `json:"verdict"`
	// Keys that are not ok.
	Keys       []string `json:"keys"`
	Operations int      `json:"operations"`
	// UnknownOperations had no answer and may have had their effect at any time.
	UnknownOperations int     `json:"unknown_operations"`
	Seconds           float64 `json:"seconds"`
	// Why tells, for each key that is illegal, a request that no order explains.
	Why []string `json:"why"`
	// Pages show why the keys that are illegal are so.
	Pages []string `json:"pages"`
}

func main() {
	patience := flag.Duration("time", 60*time.Second, "longest time for one history")
	flag.Parse()
	status := 0
	for _, file := range flag.Args() {
		verdict, err := checkFile(file, *patience)
		if err != nil {
			fmt.Fprintf(os.Stderr, "histories: %s: %v\n", file, err)
			os.Exit(2)
		}
		line, err := json.Marshal(verdict)
		if err != nil {
			fmt.Fprintf(os.Stderr, "histories: %v\n", err)
			os.Exit(2)
		}
		fmt.Println(string(line))
		if verdict.Verdict == "illegal" {
			status = 1
		}
	}
	os.Exit(status)
}

func checkFile(file string, patience time.Duration) (Verdict, error) {
	from, err := os.Open(file)
	if err != nil {
		return Verdict{}, err
	}
	defer from.Close()
	records, err := read(from)
	if err != nil {
		return Verdict{}, err
	}
	base := strings.TrimSuffix(file, filepath.Ext(file))
	verdict, err := check(records, patience, func(key string) string { return base + "-" + key + ".html" })
	verdict.File = file
	return verdict, err
}

// found is what became of one key.
type found struct {
	key    string
	result porcupine.CheckResult
	info   porcupine.LinearizationInfo
}

// check judges all keys at once, each in its own thread, and draws those that are illegal where `page` says.
func check(records []Record, patience time.Duration, page func(string) string) (Verdict, error) {
	began := time.Now()
	keys, operations, unknown := partition(records)
	verdict := Verdict{Verdict: "ok", Keys: []string{}, Pages: []string{}, Why: []string{}, Operations: len(records), UnknownOperations: unknown}
	results := make(chan found, len(keys))
	for _, key := range keys {
		go func(key string) {
			result, info := checkKey(key, operations[key], patience)
			results <- found{key, result, info}
		}(key)
	}
	for range keys {
		one := <-results
		switch one.result {
		case porcupine.Ok:
			continue
		case porcupine.Unknown:
			if verdict.Verdict == "ok" {
				verdict.Verdict = "unknown"
			}
		case porcupine.Illegal:
			verdict.Verdict = "illegal"
			verdict.Why = append(verdict.Why, one.key+": "+stuck(one.info, operations[one.key]))
			path := page(one.key)
			if err := porcupine.VisualizePath(*modelOf(one.key), one.info, path); err != nil {
				return verdict, err
			}
			verdict.Pages = append(verdict.Pages, path)
		}
		verdict.Keys = append(verdict.Keys, one.key)
	}
	verdict.Seconds = time.Since(began).Seconds()
	return verdict, nil
}

// checkKey looks for an order of the requests of one key: first without those of unknown outcome that nobody is known
// to have seen. An order of the others is one of all, as these may come behind the last answer. The checker has twice
// as much to try with each of them, and only where there is none without them it must.
func checkKey(key string, operations []porcupine.Operation, patience time.Duration) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	model := *modelOf(key)
	until := time.Now().Add(patience)
	values := told(operations)
	seen := func(input Input) bool { return isTold(values, input.Arg.Value) }
	removes := func(input Input) bool { return input.Op == "remove" || input.Op == "take" }
	for _, stays := range []func(Input) bool{seen, func(input Input) bool { return seen(input) || removes(input) }} {
		some := keep(operations, stays)
		if len(some) == len(operations) {
			break
		}
		if porcupine.CheckOperationsTimeout(model, some, patience/firstTries) == porcupine.Ok {
			return porcupine.Ok, porcupine.LinearizationInfo{}
		}
	}
	return porcupine.CheckOperationsVerbose(model, operations, time.Until(until))
}

// firstTries: a try without all requests has at most one in so many of the time.
const firstTries = 4

// keep gives the operations that were answered, and of the others those that are to stay.
func keep(operations []porcupine.Operation, stays func(Input) bool) []porcupine.Operation {
	var some []porcupine.Operation
	for _, operation := range operations {
		input := operation.Input.(Input)
		if operation.Output.(*Result) != nil || input.Op == end || stays(input) {
			some = append(some, operation)
		}
	}
	return some
}

// told gives the values that clients were told.
func told(operations []porcupine.Operation) (values []string) {
	for _, operation := range operations {
		if result := operation.Output.(*Result); result != nil && result.Value != "" {
			values = append(values, result.Value)
		}
	}
	return values
}

// isTold tells whether a value, which may have been appended to others, is in one that was told.
func isTold(values []string, value string) bool {
	for _, told := range values {
		if value != "" && strings.Contains(told, value) {
			return true
		}
	}
	return false
}

// stuck describes the request that was answered first of those which the longest order found does not hold.
func stuck(info porcupine.LinearizationInfo, operations []porcupine.Operation) string {
	longest := map[string]bool{}
	for _, orders := range info.PartialLinearizationsOperations() {
		for _, order := range orders {
			if len(order) > len(longest) {
				longest = map[string]bool{}
				for _, operation := range order {
					longest[name(operation)] = true
				}
			}
		}
	}
	var first *porcupine.Operation
	for i := range operations {
		if !longest[name(operations[i])] && (first == nil || operations[i].Return < first.Return) {
			first = &operations[i]
		}
	}
	if first == nil {
		return "no order"
	}
	text := describe(first.Input.(Input), first.Output.(*Result))
	return fmt.Sprintf("client %d, asked at %d ns: %s", first.ClientId, first.Call, text)
}

// name tells operations of one key apart.
func name(operation porcupine.Operation) string {
	return fmt.Sprint(operation.ClientId, " ", operation.Call, " ", operation.Return)
}
