// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/template"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// maxIndent limits indent and nindent, so a typo does not allocate gigabytes.
const maxIndent = 256

// Function is a template function in addition to those of text/template.
type Function struct {
	// Usage is an example of a call that begins with the name of the function.
	Usage string
	// Returns describes the result.
	Returns string
	call    any
}

// Name returns the name of the function.
func (f Function) Name() string {
	name, _, _ := strings.Cut(f.Usage, " ")
	return name
}

// Functions returns the template functions. The reference page is generated from them.
// All are pure, and no error contains an argument, because arguments may be secret.
func Functions() []Function {
	return []Function{
		{`default "d" x`, "x, or d if x is empty", defaultTo},
		{`coalesce x y z`, "the first argument that is not empty", coalesce},
		{`ternary a b cond`, "a if cond, else b", ternary},
		{`empty x`, "whether x is empty, zero or false", empty},
		{`get m "key"`, `the value of a key of a map, or ""`, get},
		{`hasKey m "key"`, "whether a map has the key", hasKey},
		{`hasTag .Metadata.Tags "t"`, "whether the list has t", hasTag},
		{`getValue "a=1;b=2" "b"`, "2", getValue},
		{`omit x "key1" "key2"`, "x, an object or a map, without these keys", omit},
		{`setDefault "a.b" value x`, "x, an object or a map, with the value at key b of key a, unless x has one", setDefault},

		{`toJson x`, "x as JSON in one line", toJSON},
		{`toPrettyJson x`, "x as JSON, indented", toPrettyJSON},
		{`toYaml x`, "x as YAML", toYAML},
		{`toYamlPretty x`, "x as YAML, with lists indented below their key", toPrettyYAML},
		{`toPrettyYaml x`, "the same as `toYamlPretty`", toPrettyYAML},
		{`b64enc s`, "s as base64", func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }},
		{`b64dec s`, "s decoded from base64", base64Decode},
		{`sha256sum s`, "the SHA-256 of s, in hexadecimal", func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }},

		{`indent n s`, "every line of s indented by n spaces", indent},
		{`nindent n s`, "a line break, then every line of s indented by n spaces", nindent},
		{`quote x`, "x in double quotes, escaped", quote},
		{`upper s`, "s in upper case", strings.ToUpper},
		{`lower s`, "s in lower case", strings.ToLower},
		{`trim s`, "s without leading and trailing white space", strings.TrimSpace},
		{`trimSuffix ".x" s`, "s without the suffix .x", func(suffix, s string) string { return strings.TrimSuffix(s, suffix) }},
		{`trimPrefix "x." s`, "s without the prefix x.", func(prefix, s string) string { return strings.TrimPrefix(s, prefix) }},
		{`replace "from" "to" s`, "s with every `from` replaced by `to`", func(from, to, s string) string { return strings.ReplaceAll(s, from, to) }},
		{`contains "x" s`, "whether x is in s", func(substr, s string) bool { return strings.Contains(s, substr) }},
		{`hasPrefix "x" s`, "whether s has the prefix x", func(prefix, s string) bool { return strings.HasPrefix(s, prefix) }},
		{`hasSuffix "x" s`, "whether s has the suffix x", func(suffix, s string) bool { return strings.HasSuffix(s, suffix) }},
		{`split s ","`, "the list of the substrings of s between commas", func(s, sep string) []string { return strings.Split(s, sep) }},
		{`join list ","`, "the items of the list, separated by commas", join},

		{`regexFind "re" s`, `the first match in s, or ""`, func(expr, s string) (string, error) { return regexFindString(expr, s) }},
		{`regexFindString "re" s n`, "group n of the first match in s, or without n the whole match", regexFindString},
		{`regexReplaceAll "re" s "to"`, "s with every match replaced by `to`, in which ${1} is the first group", regexReplaceAll},

		{`cidrhost "10.0.0.0/24" n`, "host n of the network, counted from the end if negative; without n the address without its prefix length", cidrHost},
		{`cidrslaac mac "2001:db8::/64"`, "the SLAAC address (EUI-64) of an interface with this MAC, with the prefix length", cidrSLAAC},
	}
}

// funcMap returns the functions as a text/template map.
func funcMap() template.FuncMap {
	out := template.FuncMap{}
	for _, f := range Functions() {
		out[f.Name()] = f.call
	}
	return out
}

func empty(value any) bool {
	truth, ok := template.IsTrue(value)
	return !ok || !truth
}

// defaultTo takes the default first, so values can be piped into it.
func defaultTo(fallback any, value ...any) any {
	if len(value) == 0 || empty(value[0]) {
		return fallback
	}
	return value[0]
}

func coalesce(values ...any) any {
	for _, v := range values {
		if !empty(v) {
			return v
		}
	}
	return nil
}

func ternary(whenTrue, whenFalse any, condition bool) any {
	if condition {
		return whenTrue
	}
	return whenFalse
}

// get returns "" for an absent key.
func get(m any, key string) (any, error) {
	value, err := mapValue("get", m, key)
	if err != nil || !value.IsValid() {
		return "", err
	}
	return value.Interface(), nil
}

func hasKey(m any, key string) (bool, error) {
	value, err := mapValue("hasKey", m, key)
	return value.IsValid(), err
}

func mapValue(function string, m any, key string) (reflect.Value, error) {
	v := reflect.ValueOf(m)
	if !v.IsValid() || v.Kind() != reflect.Map || v.Type().Key().Kind() != reflect.String {
		return reflect.Value{}, fmt.Errorf("%s needs a map, for example .Values, found %T", function, m)
	}
	return v.MapIndex(reflect.ValueOf(key).Convert(v.Type().Key())), nil
}

// omit converts the object to JSON, so keys have their JSON names: apiVersion, not
// APIVersion.
func omit(object any, keys ...string) (map[string]any, error) {
	fields, err := toMap("omit", object)
	for _, key := range keys {
		delete(fields, key)
	}
	return fields, err
}

// setDefault takes the object last, so it can be piped into it. Keys have their JSON
// names, as in omit.
func setDefault(path string, value, object any) (map[string]any, error) {
	fields, err := toMap("setDefault", object)
	if err != nil {
		return nil, err
	}
	if fields == nil {
		fields = map[string]any{}
	}
	inner, keys := fields, strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		next, ok := inner[key].(map[string]any)
		if inner[key] != nil && !ok {
			return fields, nil // it has another value
		}
		if !ok {
			next = map[string]any{}
			inner[key] = next
		}
		inner = next
	}
	if last := keys[len(keys)-1]; inner[last] == nil {
		inner[last] = value
	}
	return fields, nil
}

// toMap returns a copy of an object with its JSON names.
func toMap(function string, object any) (map[string]any, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a %T", object)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber() // as a float64, a number of bytes would print as 6.442450944e+09
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		return nil, fmt.Errorf("%s needs an object or a map, found %T", function, object)
	}
	return fields, nil
}

func hasTag(tags []string, tag string) bool { return slices.Contains(tags, tag) }

// getValue returns one value from "key=value;key=value", the format of the NoCloud
// serial number.
func getValue(s, key string) string {
	for pair := range strings.SplitSeq(s, ";") {
		if k, v, found := strings.Cut(pair, "="); found && strings.TrimSpace(k) == key {
			return v
		}
	}
	return ""
}

func toJSON(value any) (string, error) {
	out, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("cannot encode a %T", value)
	}
	return string(out), nil
}

func toPrettyJSON(value any) (string, error) {
	out, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return "", fmt.Errorf("cannot encode a %T", value)
	}
	return string(out), nil
}

// toYAML converts to JSON first: Kubernetes types only have JSON tags, and their
// durations and quantities are strings only in JSON.
func toYAML(value any) (string, error) {
	out, err := yaml.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("cannot encode a %T", value)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// toPrettyYAML is like toYAML with lists indented below their key.
func toPrettyYAML(value any) (string, error) {
	plain, err := toYAML(value)
	if err != nil {
		return "", err
	}
	var node yamlv3.Node
	if err := yamlv3.Unmarshal([]byte(plain+"\n"), &node); err != nil {
		return "", fmt.Errorf("cannot encode a %T", value)
	}
	var out bytes.Buffer
	encoder := yamlv3.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := errors.Join(encoder.Encode(&node), encoder.Close()); err != nil {
		return "", fmt.Errorf("cannot encode a %T", value)
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

func base64Decode(s string) (string, error) {
	out, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return "", errors.New("the argument is not base64")
	}
	return string(out), nil
}

func indent(spaces int, s string) (string, error) {
	if spaces < 0 || spaces > maxIndent {
		return "", fmt.Errorf("indentation %d is not between 0 and %d", spaces, maxIndent)
	}
	pad := strings.Repeat(" ", spaces)
	return pad + strings.ReplaceAll(s, "\n", "\n"+pad), nil
}

func nindent(spaces int, s string) (string, error) {
	out, err := indent(spaces, s)
	return "\n" + out, err
}

// quote returns the values as double-quoted strings. YAML reads Go's escapes the same.
func quote(values ...any) string {
	parts := make([]string, 0, len(values))
	for _, v := range values {
		if v != nil {
			parts = append(parts, fmt.Sprintf("%q", fmt.Sprint(v)))
		}
	}
	return strings.Join(parts, " ")
}

func join(list any, sep string) (string, error) {
	v := reflect.ValueOf(list)
	if !v.IsValid() || (v.Kind() != reflect.Slice && v.Kind() != reflect.Array) {
		return "", fmt.Errorf("join needs a list, found %T", list)
	}
	parts := make([]string, 0, v.Len())
	for i := range v.Len() {
		parts = append(parts, fmt.Sprint(v.Index(i).Interface()))
	}
	return strings.Join(parts, sep), nil
}

// regexFindString returns the first match, or the given group of it.
func regexFindString(expr, s string, group ...int) (string, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return "", errBadRegexp
	}
	index := 0
	if len(group) > 0 {
		index = group[0]
	}
	match := re.FindStringSubmatch(s)
	if index < 0 || index >= len(match) {
		return "", nil
	}
	return match[index], nil
}

func regexReplaceAll(expr, s, replacement string) (string, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return "", errBadRegexp
	}
	return re.ReplaceAllString(s, replacement), nil
}

var errBadRegexp = errors.New("the first argument is not a valid regular expression")
