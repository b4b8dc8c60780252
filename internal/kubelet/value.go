// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Keys of the maps that offerings depend on.
const (
	SignalMemory = "memory.available"
	SignalNodeFS = "nodefs.available"
)

// valueKind is what the values of a map are.
type valueKind int

const (
	reservation valueKind = iota
	threshold
)

// expressionMaps are the fields whose values may be expressions.
var expressionMaps = map[string]valueKind{
	"kubeReserved": reservation, "systemReserved": reservation, "evictionHard": threshold, "evictionSoft": threshold,
}

// keys are those that the kubelet accepts in a map.
var keys = map[valueKind][]string{
	reservation: {"cpu", "memory", "ephemeral-storage", "pid"},
	threshold: {
		SignalMemory, SignalNodeFS, "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree",
		"containerfs.available", "containerfs.inodesFree", "pid.available", "allocatableMemory.available",
	},
}

// value is a value of a map: a text for the kubelet, or an expression.
type value struct {
	kind       valueKind
	key, text  string
	expression *expression
}

var (
	// plainQuantity excludes extreme exponents, which the parser would process for minutes.
	plainQuantity = regexp.MustCompile(`^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|[KMGTP]i?|[eE][0-9]{1,2})?$`)
	percentage    = regexp.MustCompile(`^[0-9]{1,3}(\.[0-9]{1,6})?%$`)
	maxQuantity   = resource.MustParse("1Pi")
)

// help returns the allowed values of a kind.
func (k valueKind) help() string {
	if k == threshold {
		return "want a quantity such as 100Mi, a percentage such as 5%, or " + expressionHelp + ", such as memory / 20"
	}
	return "want a quantity such as 100m or 512Mi, or " + expressionHelp + ", such as 256 * Mi + memory / 50"
}

// newValue returns a value. The error states what is allowed.
func newValue(kind valueKind, key, text string) (value, error) {
	v := value{kind: kind, key: key, text: text}
	if !slices.Contains(keys[kind], key) {
		return v, fmt.Errorf("want one of the keys %s", strings.Join(keys[kind], ", "))
	}
	if plainQuantity.MatchString(text) || kind == threshold && percentage.MatchString(text) {
		if err := v.check(text); err != nil {
			return v, fmt.Errorf("%s: %w", kind.help(), err)
		}
		return v, nil
	}
	var err error
	if v.expression, err = compile(text); err != nil {
		return v, fmt.Errorf("%s: %w", kind.help(), err)
	}
	return v, nil
}

// check checks a text for the kubelet.
func (v value) check(text string) error {
	if number, isPercentage := strings.CutSuffix(text, "%"); isPercentage && v.kind == threshold {
		if share, err := strconv.ParseFloat(number, 64); err != nil || !percentage.MatchString(text) || share > 100 {
			return errors.New("want a percentage from 0% to 100%")
		}
		return nil
	}
	if !plainQuantity.MatchString(text) {
		return errors.New("want 0 or a positive quantity")
	}
	quantity, err := resource.ParseQuantity(text)
	switch {
	case err != nil:
		return err
	case quantity.Cmp(maxQuantity) > 0:
		return errors.New("want at most 1Pi")
	case v.kind == threshold && quantity.IsZero():
		return errors.New("want a positive quantity, or 0% to disable the threshold")
	}
	return nil
}

// resolve returns the text for the kubelet of a VM.
func (v value) resolve(vm VM) (string, error) {
	if v.expression == nil {
		return v.text, nil
	}
	text, err := v.evaluate(vm)
	if err != nil {
		return "", fmt.Errorf("%w for %s; %s", err, vm, v.kind.help())
	}
	return text, nil
}

func (v value) evaluate(vm VM) (string, error) {
	result, err := v.expression.evaluate(vm)
	if err != nil {
		return "", err
	}
	text, err := v.format(result.Value())
	if err == nil {
		err = v.check(text)
	}
	if err != nil {
		return "", fmt.Errorf("it is %v: %w", result.Value(), err)
	}
	return text, nil
}

// format returns the text of a result. CPUs are rounded up to thousandths, all others to
// integers.
func (v value) format(result any) (string, error) {
	switch result := result.(type) {
	case string:
		return result, nil
	case int64:
		if result < 0 {
			return "", errors.New("want 0 or more")
		}
		return v.newQuantity(result).String(), nil
	case float64:
		switch {
		case result < 0:
			return "", errors.New("want 0 or more")
		case result > maxQuantity.AsApproximateFloat64():
			return "", errors.New("want at most 1Pi")
		case v.key == "cpu":
			return resource.NewMilliQuantity(int64(math.Ceil(result*1000)), resource.DecimalSI).String(), nil
		}
		return v.newQuantity(int64(math.Ceil(result))).String(), nil
	}
	return "", fmt.Errorf("its type is %T", result)
}

func (v value) newQuantity(n int64) *resource.Quantity {
	if v.key == "cpu" || v.key == "pid" || strings.HasSuffix(v.key, "inodesFree") || v.key == "pid.available" {
		return resource.NewQuantity(n, resource.DecimalSI)
	}
	return resource.NewQuantity(n, resource.BinarySI)
}

const (
	minPods = 10
	maxPods = 250
)

// resolveMaxPods returns maxPods for a VM.
func resolveMaxPods(e *expression, vm VM) (int32, error) {
	result, err := e.evaluate(vm)
	if err != nil {
		return 0, fmt.Errorf("%w for %s", err, vm)
	}
	if n, ok := result.(types.Int); ok && n >= minPods && n <= maxPods {
		return int32(n), nil
	}
	return 0, fmt.Errorf("it is %v for %s, want a number from %d to %d", result.Value(), vm, minPods, maxPods)
}
