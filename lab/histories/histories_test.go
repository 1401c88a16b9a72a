package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// history reads records written as in a file, one a line, without the members that say nothing.
func history(t *testing.T, lines ...string) []Record {
	t.Helper()
	records, err := read(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// line is a record with an answer; times are in milliseconds.
func line(client int, op, key string, arg, result string, call, returned int64) string {
	return fmt.Sprintf(`{"client":%d,"op":%q,"key":%q,"arg":{%s},"result":{%s},"call_ns":%d,"return_ns":%d}`,
		client, op, key, arg, result, call*1e6, returned*1e6)
}

// lost is a record whose outcome is unknown.
func lost(client int, op, key, arg string, call int64) string {
	return fmt.Sprintf(`{"client":%d,"op":%q,"key":%q,"arg":{%s},"result":null,"call_ns":%d,"return_ns":null}`,
		client, op, key, arg, call*1e6)
}

func judge(t *testing.T, lines ...string) Verdict {
	t.Helper()
	dir := t.TempDir()
	page := func(key string) string { return filepath.Join(dir, key+".html") }
	verdict, err := check(history(t, lines...), 10*time.Second, page)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range verdict.Pages {
		if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "<html") {
			t.Errorf("no page at %s: %v", path, err)
		}
	}
	return verdict
}

func put(client int, value string, version int, call, returned int64) string {
	return line(client, "put", "object-1", fmt.Sprintf(`"value":%q`, value),
		fmt.Sprintf(`"status":"ok","version":%d`, version), call, returned)
}

func get(client int, value string, version int, call, returned int64) string {
	if value == "" {
		return line(client, "get", "object-1", "", `"status":"not_found"`, call, returned)
	}
	return line(client, "get", "object-1", "",
		fmt.Sprintf(`"status":"ok","value":%q,"version":%d`, value, version), call, returned)
}

func of(op, arg, result string, call, returned int64) string {
	return line(3, op, "object-1", arg, result, call, returned)
}

func guarded(client int, op string, grant int, value, result string, call, returned int64) string {
	return line(client, op, "guarded-1", fmt.Sprintf(`"value":%q,"grant":%d`, value, grant), result, call, returned)
}

func locked(client int, lease, grant int, call, returned int64) string {
	result := fmt.Sprintf(`"status":"ok","grant":%d`, grant)
	if grant == 0 {
		result = `"status":"held"`
	}
	return line(client, "lock", "lock-1", fmt.Sprintf(`"lease_ms":%d`, lease), result, call, returned)
}

func hold(op string, grant int, status string, call, returned int64) string {
	return line(1, op, "lock-1", fmt.Sprintf(`"grant":%d,"lease_ms":1000`, grant), fmt.Sprintf(`"status":%q`, status), call, returned)
}

var planted = map[string][]string{
	"stale read":                {put(1, "a", 1, 0, 1), put(1, "b", 2, 2, 3), get(2, "a", 1, 4, 5)},
	"a read goes back":          {put(1, "a", 1, 0, 1), put(1, "b", 2, 2, 30), get(2, "b", 2, 4, 5), get(3, "a", 1, 6, 7)},
	"acknowledged and lost":     {put(1, "a", 1, 0, 1), get(2, "", 0, 4, 5)},
	"read of what nobody wrote": {put(1, "a", 1, 0, 1), get(2, "c", 1, 4, 5)},
	"lost update": {
		put(1, "a", 1, 0, 1),
		of("cas", `"version":1,"value":"b"`, `"status":"ok","version":2`, 2, 9),
		of("cas", `"version":1,"value":"c"`, `"status":"ok","version":3`, 2, 9),
	},
	"an append is lost": {
		of("append", `"value":"a"`, `"status":"ok","version":1,"size":1`, 0, 9),
		of("append", `"value":"b"`, `"status":"ok","version":2,"size":1`, 0, 9),
	},
	"an append without an answer is made twice": {
		put(1, "a", 1, 0, 1), lost(2, "append", "object-1", `"value":"b"`, 2), get(3, "abb", 3, 9, 10),
	},
	"double take": {
		put(1, "a", 1, 0, 1),
		of("take", "", `"status":"ok","value":"a","version":2`, 2, 9),
		of("take", "", `"status":"ok","value":"a","version":3`, 2, 9),
	},
	"added twice": {
		of("add", `"value":"a"`, `"status":"ok","version":1`, 0, 9),
		of("add", `"value":"b"`, `"status":"ok","version":2`, 0, 9),
	},
	"removed, and still there": {
		put(1, "a", 1, 0, 1), of("remove", "", `"status":"ok","version":2`, 2, 3), get(2, "a", 1, 4, 5),
	},
	"refused, though the version was right": {
		put(1, "a", 1, 0, 1), of("cas", `"version":1,"value":"b"`, `"status":"condition_failed","version":1`, 2, 3),
	},
	"refused, and done": {
		put(1, "a", 1, 0, 1),
		of("cas", `"version":7,"value":"b"`, `"status":"condition_failed","version":1`, 2, 3), get(2, "b", 2, 4, 5),
	},
	"a version goes back": {put(1, "a", 5, 0, 1), put(1, "b", 4, 2, 3)},
	"a version goes back behind a removal": {
		put(1, "a", 5, 0, 1), of("remove", "", `"status":"ok","version":6`, 2, 3), put(1, "b", 6, 4, 5),
	},
	"two values of one version": {put(1, "a", 5, 0, 1), get(2, "a", 6, 2, 3)},
	"a lower token is let through": {
		guarded(1, "put", 9, "a", `"status":"ok","version":1`, 0, 1), guarded(2, "put", 8, "b", `"status":"ok","version":2`, 2, 3),
	},
	"a lower token is let through behind a removal": {
		guarded(1, "put", 8, "a", `"status":"ok","version":1`, 0, 1), guarded(1, "remove", 9, "", `"status":"ok","version":2`, 2, 3),
		guarded(2, "put", 8, "b", `"status":"ok","version":3`, 4, 5),
	},
	"a lower token is let through behind a get": {
		guarded(1, "get", 9, "", `"status":"not_found"`, 0, 1), guarded(2, "put", 8, "b", `"status":"ok","version":1`, 2, 3),
	},
	"the token in force is refused": {
		guarded(1, "put", 9, "a", `"status":"ok","version":1`, 0, 1), guarded(2, "put", 9, "b", `"status":"condition_failed"`, 2, 3),
	},
	"a change without a token": {
		guarded(1, "put", 9, "a", `"status":"ok","version":1`, 0, 1), guarded(2, "put", 0, "b", `"status":"ok","version":2`, 2, 3),
	},
	"two holders":                {locked(1, 1000, 5, 0, 1), locked(2, 1000, 6, 2, 3)},
	"two holders, one told late": {locked(1, 1000, 5, 0, 500), locked(2, 1000, 6, 600, 900)},
	"a token goes back":          {locked(1, 100, 5, 0, 1), hold("unlock", 5, "ok", 2, 3), locked(2, 1000, 4, 4, 5)},
	"a token comes twice":        {locked(1, 100, 5, 0, 1), hold("unlock", 5, "ok", 2, 3), locked(2, 1000, 5, 4, 5)},
	"held, though given back":    {locked(1, 1000, 5, 0, 1), hold("unlock", 5, "ok", 2, 3), locked(2, 1000, 0, 4, 5)},
	"held, though over":          {locked(1, 100, 5, 0, 1), locked(2, 1000, 0, 200, 201)},
	"lost within the lease":      {locked(1, 1000, 5, 0, 1), hold("check", 5, "condition_failed", 2, 3)},
	"renewed though over":        {locked(1, 100, 5, 0, 1), hold("renew", 5, "ok", 200, 201)},
	"held by a token that was given back": {
		locked(1, 1000, 5, 0, 1), hold("unlock", 5, "ok", 2, 3), hold("check", 5, "ok", 4, 5),
	},
	"a lease renewed is not kept": {
		locked(1, 100, 5, 0, 1), hold("renew", 5, "ok", 50, 51), locked(2, 1000, 6, 200, 201),
	},
	"two holders beside one that was not told": {
		locked(1, 1000, 5, 0, 1), lost(3, "lock", "lock-1", `"lease_ms":100`, 0), locked(2, 1000, 6, 400, 401),
	},
}

func TestPlantedHistoriesAreFound(t *testing.T) {
	for name, lines := range planted {
		verdict := judge(t, lines...)
		if verdict.Verdict != "illegal" || len(verdict.Pages) != 1 {
			t.Errorf("%s: %+v", name, verdict)
		}
	}
}

var legal = map[string][]string{
	"at once, either order": {put(1, "a", 2, 0, 9), put(2, "b", 1, 0, 9), get(3, "a", 2, 10, 11)},
	"no answer, done":       {put(1, "a", 1, 0, 1), lost(2, "put", "object-1", `"value":"b"`, 2), get(3, "b", 2, 9, 10)},
	"no answer, not done":   {put(1, "a", 1, 0, 1), lost(2, "put", "object-1", `"value":"b"`, 2), get(3, "a", 1, 9, 10)},
	"no answer, done late": {
		put(1, "a", 1, 0, 1), lost(2, "put", "object-1", `"value":"b"`, 2), get(3, "a", 1, 9, 10), get(3, "b", 2, 11, 12),
	},
	"no answer to a take": {put(1, "a", 1, 0, 1), lost(2, "take", "object-1", "", 2), get(3, "", 0, 9, 10)},
	"no answer to a comparison that did not hold": {
		put(1, "a", 1, 0, 1), lost(2, "cas", "object-1", `"version":9,"value":"b"`, 2), get(3, "a", 1, 9, 10),
	},
	"refused without effect": {
		put(1, "a", 1, 0, 1),
		`{"client":2,"op":"put","key":"object-1","arg":{"value":"b"},"result":null,"refused":"busy","call_ns":2000000,"return_ns":3000000}`,
		get(3, "a", 1, 9, 10),
	},
	"a door without versions": {
		of("put", `"value":"a"`, `"status":"ok"`, 0, 1), get(1, "a", 7, 2, 3), get(1, "a", 7, 4, 5),
		of("append", `"value":"b"`, `"status":"ok"`, 6, 7), get(1, "ab", 9, 8, 9),
	},
	"condition failed": {
		put(1, "a", 5, 0, 1), of("cas", `"version":4,"value":"b"`, `"status":"condition_failed","version":5`, 2, 3),
		of("add", `"value":"b"`, `"status":"condition_failed","version":5`, 2, 3),
	},
	"tokens": {
		guarded(1, "put", 8, "a", `"status":"ok","version":1`, 0, 1), guarded(2, "get", 9, "", `"status":"ok","value":"a","version":2`, 2, 3),
		guarded(1, "put", 8, "b", `"status":"condition_failed"`, 4, 5), guarded(1, "put", 0, "b", `"status":"not_allowed"`, 4, 5),
		guarded(1, "get", 0, "", `"status":"ok","value":"a","version":2`, 4, 5),
	},
	"a token shown without an answer": {
		guarded(1, "put", 8, "a", `"status":"ok","version":1`, 0, 1), lost(2, "put", "guarded-1", `"value":"b","grant":9`, 2),
		guarded(1, "put", 8, "c", `"status":"condition_failed"`, 4, 5),
	},
	"a lock changes hands": {
		locked(1, 1000, 5, 0, 1), locked(2, 1000, 0, 2, 3), hold("renew", 5, "ok", 4, 5), hold("unlock", 5, "ok", 6, 7),
		locked(2, 100, 6, 8, 9), hold("unlock", 5, "condition_failed", 10, 11), locked(1, 1000, 7, 200, 201),
	},
	"a lock granted without an answer": {
		lost(1, "lock", "lock-1", `"lease_ms":100`, 0), locked(2, 100, 0, 50, 51), locked(2, 100, 6, 300, 301),
	},
	"given back without an answer": {
		locked(1, 1000, 5, 0, 1), lost(1, "unlock", "lock-1", `"grant":5`, 2), locked(2, 100, 6, 4, 5),
	},
}

func TestLegalHistoriesPass(t *testing.T) {
	for name, lines := range legal {
		if verdict := judge(t, lines...); verdict.Verdict != "ok" {
			t.Errorf("%s: %+v", name, verdict)
		}
	}
}

func TestOtherKeysAreJudgedBesideAnIllegalOne(t *testing.T) {
	lines := append([]string{locked(1, 1000, 5, 0, 1)}, planted["stale read"]...)
	verdict := judge(t, lines...)
	if verdict.Verdict != "illegal" || len(verdict.Keys) != 1 || verdict.Keys[0] != "object-1" || verdict.Operations != 4 {
		t.Errorf("%+v", verdict)
	}
}

func TestWhatIsNoHistoryIsRefused(t *testing.T) {
	for _, text := range []string{
		"{", `{"key":"other-1","op":"get"}`, `{"key":"object-1","op":"jump"}`,
		`{"key":"object-1","op":"get","result":{"status":"ok"}}`,
		`{"key":"object-1","op":"get","result":{"status":"ok"},"call_ns":5,"return_ns":4}`,
	} {
		if _, err := read(strings.NewReader(text)); err == nil {
			t.Errorf("taken: %s", text)
		}
	}
}

// Many requests without an answer must not keep the checker from its verdict: each may have come at any time.
func TestManyWithoutAnAnswer(t *testing.T) {
	var lines []string
	for i := 0; i < 40; i++ {
		at := int64(10 * i)
		lines = append(lines, lost(2, "put", "object-1", fmt.Sprintf(`"value":"u%d"`, i), at),
			lost(2, "cas", "object-1", fmt.Sprintf(`"value":"c%d","version":%d`, i, i), at),
			put(1, fmt.Sprint("v", i), 10*i+1, at+1, at+2), get(3, fmt.Sprint("v", i), 10*i+1, at+3, at+4))
	}
	if verdict := judge(t, lines...); verdict.Verdict != "ok" {
		t.Errorf("%+v", verdict)
	}
	lines = append(lines, get(3, "v1", 11, 5000, 5001))
	if verdict := judge(t, lines...); verdict.Verdict != "illegal" {
		t.Errorf("%+v", verdict)
	}
}

// Of many requests without an answer those that nobody saw are not tried everywhere: the checker would not end.
func TestManyUnknown(t *testing.T) {
	lines := []string{put(1, "a", 1, 0, 1)}
	for client := 2; client < 80; client++ {
		op := []string{"append", "remove", "add"}[client%3]
		arg := ""
		if op != "remove" {
			arg = fmt.Sprintf(`"value":"%d;"`, client)
		}
		lines = append(lines, lost(client, op, "object-1", arg, 2))
	}
	for at := int64(3); at < 200; at += 2 {
		lines = append(lines, get(1, "a", 1, at, at+1))
	}
	began := time.Now()
	if verdict := judge(t, lines...); verdict.Verdict != "ok" {
		t.Errorf("%s after %s", verdict.Verdict, time.Since(began))
	}
}

// What nobody was told may be what explains an answer all the same.
func TestUnseenIsNeeded(t *testing.T) {
	gone := line(1, "remove", "object-1", "", `"status":"ok"`, 5, 6)
	for _, lines := range [][]string{
		{put(1, "a", 1, 0, 1), lost(2, "remove", "object-1", "", 2), get(1, "", 0, 3, 4)},
		{lost(2, "put", "object-1", `"value":"b"`, 2), gone},
		{lost(2, "put", "object-1", `"value":"b"`, 2), lost(3, "remove", "object-1", "", 2), gone},
	} {
		if verdict := judge(t, lines...); verdict.Verdict != "ok" {
			t.Errorf("%s: %s", verdict.Verdict, strings.Join(lines, "\n"))
		}
	}
	if verdict := judge(t, lost(3, "remove", "object-1", "", 2), gone); verdict.Verdict != "illegal" {
		t.Errorf("%s: removed what was never there", verdict.Verdict)
	}
}
