// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"
)

// For returns the kubelet's configuration for a VM: expressions are replaced by their
// values. It fails if a value is not valid for this VM.
func (c *Config) For(vm VM) (kubeletconfig.KubeletConfiguration, error) {
	out := c.Fixed()
	var problems []string
	if c.maxPods != nil {
		pods, err := resolveMaxPods(c.maxPods, vm)
		if err != nil {
			problems = append(problems, problem("maxPods", fmt.Sprintf("%q", c.maxPods.text), err.Error()))
		}
		out.MaxPods = pods
	}
	for _, name := range slices.Sorted(maps.Keys(c.values)) {
		for _, key := range slices.Sorted(maps.Keys(c.values[name])) {
			v := c.values[name][key]
			text, err := v.resolve(vm)
			if err != nil {
				problems = append(problems, problem(name+"."+key, fmt.Sprintf("%q", v.text), err.Error()))
			}
			setValue(&out, name, key, text)
		}
	}
	if cpus, err := ReservedCPUs(out); err != nil || cpus.Size() > 0 && cpus.List()[cpus.Size()-1] >= vm.CPUs {
		problems = append(problems, problem("reservedSystemCPUs", fmt.Sprintf("%q", out.ReservedSystemCPUs), fmt.Sprintf("want CPUs below %d for %s", vm.CPUs, vm)))
	}
	if len(problems) > 0 {
		return kubeletconfig.KubeletConfiguration{}, errors.New(strings.Join(problems, "; "))
	}
	return out, nil
}

// Fixed returns the kubelet's configuration without the values of expressions.
func (c *Config) Fixed() kubeletconfig.KubeletConfiguration {
	out := *c.fields.DeepCopy()
	for name, values := range c.values {
		for key, v := range values {
			if v.expression == nil {
				setValue(&out, name, key, v.text)
			}
		}
	}
	return out
}

// ReservedCPUs returns reservedSystemCPUs. They replace the CPUs of kubeReserved and
// systemReserved.
func ReservedCPUs(config kubeletconfig.KubeletConfiguration) (cpuset.CPUSet, error) {
	return cpuset.Parse(config.ReservedSystemCPUs)
}

// setValue sets a value of a map that may contain expressions.
func setValue(config *kubeletconfig.KubeletConfiguration, name, key, text string) {
	field := map[string]*map[string]string{
		"kubeReserved": &config.KubeReserved, "systemReserved": &config.SystemReserved,
		"evictionHard": &config.EvictionHard, "evictionSoft": &config.EvictionSoft,
	}[name]
	if *field == nil {
		*field = map[string]string{}
	}
	(*field)[key] = text
}

// newerFields are the fields that Kubernetes 1.30, the oldest supported version, does not
// have, with the minor version that added them.
var newerFields = map[string]uint{
	"crashLoopBackOff":                       32,
	"failCgroupV1":                           31,
	"imagePullCredentialsVerificationPolicy": 33,
	"memoryReservationPolicy":                36,
	"mergeDefaultEvictionSettings":           33,
	"preloadedImagesVerificationAllowlist":   33,
	"singleProcessOOMKill":                   32,
	"tlsCurvePreferences":                    36,
	"userNamespaces":                         33,
}

// CheckVersion fails if a field is newer than the API server. A kubelet must not be newer
// than the API server, and an older one ignores the field.
func (c *Config) CheckVersion(server string) error {
	found, err := version.ParseGeneric(server)
	if err != nil || found.Major() == 0 {
		return nil //nolint:nilerr // unknown, as in simulations: the kubelet logs fields that it ignores
	}
	var problems []string
	for _, name := range c.names {
		if since, ok := newerFields[name]; ok && found.LessThan(version.MajorMinor(1, since)) {
			problems = append(problems, fmt.Sprintf("%s%s: needs Kubernetes 1.%d, found %s, whose kubelets ignore the field", path, name, since, server))
		}
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}
