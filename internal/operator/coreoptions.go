// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"flag"
	"fmt"
	"io"
	"reflect"
	"strings"

	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
)

// CoreOption is a setting of Karpenter's core.
type CoreOption struct {
	Option
	// Type of the value: bool, int, int64, string or time.Duration. Core replaces an
	// environment variable of another type by the default, without an error.
	Type reflect.Type
}

// notInSettings are the flags of core that the chart does not offer below settings: it
// sets them from other values, or they must not be set.
var notInSettings = map[string]string{
	"feature-gates":             "settings.featureGates",
	"log-level":                 "logVerbosityLevel",
	"leader-election-name":      "leaderElectionName",
	"metrics-port":              "metrics.port",
	"leader-election-namespace": "the namespace of the release",
	"memory-limit":              "resources.limits.memory",
	"health-probe-port":         "the port of the probes is fixed",
	"karpenter-service":         "core does not use it",
	"disable-leader-election":   "two controllers would run during a rollout",
}

// CoreOptions returns the settings of Karpenter's core that the chart offers below
// settings, in the order of their flags.
func CoreOptions() []CoreOption {
	var core coreoptions.Options
	flags := &coreoptions.FlagSet{FlagSet: flag.NewFlagSet("", flag.ContinueOnError)}
	flags.SetOutput(io.Discard)
	core.AddFlags(flags)
	var options []CoreOption
	flags.VisitAll(func(f *flag.Flag) {
		if _, skipped := notInSettings[f.Name]; skipped {
			return
		}
		option := CoreOption{Option: Option{
			Flag: f.Name, Env: strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")), Default: f.DefValue, Help: f.Usage,
		}}
		if value, ok := f.Value.(flag.Getter); ok {
			option.Type = reflect.TypeOf(value.Get())
		} else { // a bool; its flag does not know its default
			option.Type = reflect.TypeFor[bool]()
			option.Default = fmt.Sprint(reflect.ValueOf(core).FieldByNameFunc(func(name string) bool {
				return strings.EqualFold(name, strings.ReplaceAll(f.Name, "-", ""))
			}))
		}
		options = append(options, option)
	})
	return options
}
