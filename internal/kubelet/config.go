// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubelet validates spec.kubeletConfiguration of NodeClasses. Config is a valid
// one; it computes the kubelet's configuration for a VM from expressions over its size.
// The rules are those that a kubelet checks when it starts: a kubelet that exits never
// registers its Node, which is detected only after 15 minutes.
package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	kjson "sigs.k8s.io/json"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Version is the Kubernetes version whose fields are known: that of the module
// k8s.io/kubelet.
const Version = "1.36"

// path is the field of the NodeClass.
const path = "spec.kubeletConfiguration."

// ownedFields are set by the provider, with the reason.
var ownedFields = map[string]string{
	"apiVersion":         "the provider writes it: remove it",
	"kind":               "the provider writes it: remove it",
	"providerID":         "the provider sets it, because Karpenter finds the Node by it: remove it",
	"registerNode":       "the provider needs the Node to register: remove it",
	"registerWithTaints": "the provider sets it: use taints and startupTaints of the NodePool",
}

// Config is a valid kubelet configuration of a NodeClass. The zero value has no fields.
type Config struct {
	// names are the fields that are set, in order.
	names []string
	// fields are those without expressions.
	fields  kubeletconfig.KubeletConfiguration
	maxPods *expression
	// values are the values of the maps that may contain expressions, by field and key.
	values map[string]map[string]value
}

// New returns the Config of a NodeClass; spec may be nil. The error names all invalid
// fields with their values and what is allowed.
func New(spec *v1alpha1.KubeletConfiguration) (*Config, error) {
	c := &Config{values: map[string]map[string]value{}}
	if spec == nil {
		return c, nil
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encoding spec.kubeletConfiguration: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, fmt.Errorf("decoding spec.kubeletConfiguration: %w", err)
	}
	var problems []string
	c.names = slices.Sorted(maps.Keys(fields))
	for _, name := range c.names {
		problems = append(problems, c.set(name, fields[name])...)
	}
	if len(problems) == 0 {
		problems = append(checkRules(&c.fields), c.checkGracePeriods()...)
	}
	if len(problems) > 0 {
		return nil, errors.New(strings.Join(problems, "; "))
	}
	return c, nil
}

// set sets a field and returns its problems.
func (c *Config) set(name string, raw json.RawMessage) []string {
	if reason, owned := ownedFields[name]; owned {
		return []string{problem(name, string(raw), reason)}
	}
	kind, mayContainExpressions := expressionMaps[name]
	switch {
	case name == "maxPods" && strings.HasPrefix(string(raw), `"`):
		return c.setMaxPods(raw)
	case mayContainExpressions:
		return c.setValues(name, kind, raw)
	}
	return c.decode(name, raw)
}

func (c *Config) setMaxPods(raw json.RawMessage) []string {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return []string{problem("maxPods", string(raw), err.Error())}
	}
	var err error
	if c.maxPods, err = compile(text); err == nil && !c.maxPods.isInteger {
		err = errors.New("its type is not int: use int(...)")
	}
	if err != nil {
		return []string{problem("maxPods", string(raw), fmt.Sprintf("want a number from %d to %d, or %s, such as math.least(110, cpu * 30): %v", minPods, maxPods, expressionHelp, err))}
	}
	return nil
}

// setValues sets a map whose values may be expressions.
func (c *Config) setValues(name string, kind valueKind, raw json.RawMessage) []string {
	var texts map[string]string
	if err := json.Unmarshal(raw, &texts); err != nil {
		return []string{problem(name, string(raw), "want a map of strings")}
	}
	var problems []string
	values := make(map[string]value, len(texts))
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		v, err := newValue(kind, key, texts[key])
		if err != nil {
			problems = append(problems, problem(name+"."+key, fmt.Sprintf("%q", texts[key]), err.Error()))
		}
		values[key] = v
	}
	c.values[name] = values
	return problems
}

// checkGracePeriods checks that each soft threshold has a grace period.
func (c *Config) checkGracePeriods() []string {
	var problems []string
	for _, signal := range slices.Sorted(maps.Keys(c.values["evictionSoft"])) {
		if _, ok := c.fields.EvictionSoftGracePeriod[signal]; !ok {
			problems = append(problems, problem("evictionSoftGracePeriod", fmt.Sprintf("no %s", signal), "each threshold of evictionSoft needs a duration such as 1m30s"))
		}
	}
	return problems
}

// quantityFields are decoded to quantities, which are not checked otherwise.
var quantityFields = []string{"logging", "reservedMemory"}

// hugeExponent matches numbers that the parser of quantities processes for minutes.
var hugeExponent = regexp.MustCompile(`[0-9.][eE][+-]?[0-9]{3,}`)

// decode decodes a field as strictly as the kubelet.
func (c *Config) decode(name string, raw json.RawMessage) []string {
	field, ok := fieldsByName[name]
	if !ok {
		return []string{problem(name, string(raw), fmt.Sprintf("the kubelet's configuration (%s, Kubernetes %s) has no such field%s",
			kubeletconfig.SchemeGroupVersion, Version, suggestion(name)))}
	}
	if slices.Contains(quantityFields, name) && hugeExponent.Match(raw) {
		return []string{problem(name, string(raw), "want quantities without large exponents, such as 512Mi")}
	}
	object, err := json.Marshal(map[string]json.RawMessage{name: raw})
	if err != nil {
		return []string{problem(name, string(raw), err.Error())}
	}
	unknown, err := kjson.UnmarshalStrict(object, &c.fields)
	if err != nil {
		return []string{problem(name, string(raw), fmt.Sprintf("want %s (%s)", describe(field), strings.TrimPrefix(err.Error(), "json: ")))}
	}
	var problems []string
	for _, err := range unknown {
		problems = append(problems, problem(name, string(raw), fmt.Sprintf("%v; the kubelet's fields are those of Kubernetes %s", err, Version)))
	}
	return problems
}

// maxFoundLength is how much of a value a message contains.
const maxFoundLength = 120

// problem returns a message that names a field, its value and what is allowed.
func problem(field, found, want string) string {
	if len(found) > maxFoundLength {
		found = strings.ToValidUTF8(found[:maxFoundLength], "") + "…"
	}
	return fmt.Sprintf("%s%s: found %s; %s", path, field, found, want)
}

// fieldsByName are the types of the kubelet's fields.
var fieldsByName = func() map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for field := range reflect.TypeFor[kubeletconfig.KubeletConfiguration]().Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			fields[name] = field.Type
		}
	}
	return fields
}()

// suggestion returns the field with a similar name as the end of a message.
func suggestion(name string) string {
	for _, known := range slices.Sorted(maps.Keys(fieldsByName)) {
		if strings.EqualFold(known, name) || len(name) > 3 && (strings.HasPrefix(known, name) || strings.HasPrefix(name, known)) {
			return fmt.Sprintf("; did you mean %s?", known)
		}
	}
	return ""
}

// describe returns what values a type allows.
func describe(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[metav1.Duration]() {
		return `a duration such as "10s" or "1m30s"`
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int32, reflect.Int64:
		return fmt.Sprintf("an integer of %d bits", t.Bits())
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Map:
		return "a map"
	}
	return "an object"
}
