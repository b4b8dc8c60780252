// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// kubeletSettings is the configuration that the kubelet reads at startup.
type kubeletSettings struct {
	nodeName         string
	nodeIPs          []netip.Addr
	providerID       string
	externalProvider bool
	labels           map[string]string
	taints           []corev1.Taint
	// bootstrap returns the credentials for requesting a certificate.
	bootstrap func() (apiAccess, error)
	config    kubeletconfig.KubeletConfiguration
}

// readKubeletSettings reads flags and config file from the disk. It returns the errors
// that make a real kubelet exit.
func readKubeletSettings(disk pvesim.GuestDisk, hostname string, warn func(string, ...any)) (kubeletSettings, error) {
	flags := readKubeletFlags(disk)
	s, err := settingsFrom(disk, flags, hostname, warn)
	s.bootstrap = func() (apiAccess, error) { return readBootstrapKubeconfig(disk, flags.flag("bootstrap-kubeconfig")) }
	return s, err
}

// settingsFrom parses a kubelet's command line and reads the config file set in it.
func settingsFrom(disk pvesim.GuestDisk, flags kubeletFlags, hostname string, warn func(string, ...any)) (kubeletSettings, error) {
	s := kubeletSettings{
		nodeName:         strings.ToLower(hostname),
		externalProvider: flags.flag("cloud-provider") == "external",
	}
	if name := flags.flag("hostname-override"); name != "" {
		s.nodeName = strings.ToLower(name)
	}
	var err error
	if s.nodeIPs, err = parseNodeIPs(flags.flag("node-ip")); err != nil {
		return s, err
	}
	if s.config, err = readConfigFile(disk, flags.flag("config"), warn); err != nil {
		return s, err
	}
	if s.labels, err = parseNodeLabels(flags.flag("node-labels")); err != nil {
		return s, err
	}
	s.taints = s.config.RegisterWithTaints
	if text := flags.flag("register-with-taints"); text != "" {
		if s.taints, err = parseTaints(text); err != nil {
			return s, err
		}
	}
	s.providerID = s.config.ProviderID
	if id := flags.flag("provider-id"); id != "" {
		s.providerID = id
	}
	return s, nil
}

// readConfigFile decodes a KubeletConfiguration as the kubelet does: if only strict
// decoding fails, it logs a warning and decodes leniently.
func readConfigFile(disk pvesim.GuestDisk, name string, warn func(string, ...any)) (kubeletconfig.KubeletConfiguration, error) {
	if name == "" {
		return kubeletconfig.KubeletConfiguration{}, nil
	}
	raw, ok := disk.Read(name)
	if !ok {
		return kubeletconfig.KubeletConfiguration{}, fmt.Errorf("failed to load kubelet config file, open %s: no such file or directory", name)
	}
	scheme := runtime.NewScheme()
	if err := kubeletconfig.AddToScheme(scheme); err != nil {
		return kubeletconfig.KubeletConfiguration{}, err
	}
	decode := func(mutators ...serializer.CodecFactoryOptionsMutator) (runtime.Object, error) {
		object, _, err := serializer.NewCodecFactory(scheme, mutators...).UniversalDeserializer().Decode(raw, nil, nil)
		return object, err
	}
	object, err := decode(serializer.EnableStrict)
	if runtime.IsStrictDecodingError(err) {
		warn("kubelet: using lenient decoding of %s: %v", name, err)
		object, err = decode()
	}
	if err != nil {
		return kubeletconfig.KubeletConfiguration{}, fmt.Errorf("failed to load kubelet config file %s: %w", name, err)
	}
	config, ok := object.(*kubeletconfig.KubeletConfiguration)
	if !ok {
		return kubeletconfig.KubeletConfiguration{}, fmt.Errorf("failed to load kubelet config file %s: unexpected type %T", name, object)
	}
	return *config, nil
}

// parseNodeLabels parses --node-labels. It returns an error for labels that a kubelet
// rejects.
func parseNodeLabels(text string) (map[string]string, error) {
	labels := map[string]string{}
	var forbidden []string
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		namespace, _, qualified := strings.Cut(key, "/")
		reserved := qualified && (namespace == "kubernetes.io" || strings.HasSuffix(namespace, ".kubernetes.io") ||
			namespace == "k8s.io" || strings.HasSuffix(namespace, ".k8s.io"))
		if reserved && !kubeletapis.IsKubeletLabel(key) {
			forbidden = append(forbidden, key)
		}
		labels[key] = value
	}
	if len(forbidden) > 0 {
		return nil, fmt.Errorf("failed to validate kubelet flags, unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: %v", forbidden)
	}
	return labels, nil
}

// parseTaints parses --register-with-taints: key=value:effect or key:effect.
func parseTaints(text string) ([]corev1.Taint, error) {
	known := map[corev1.TaintEffect]bool{
		corev1.TaintEffectNoSchedule: true, corev1.TaintEffectPreferNoSchedule: true, corev1.TaintEffectNoExecute: true,
	}
	var taints []corev1.Taint
	for word := range strings.SplitSeq(text, ",") {
		subject, effect, found := strings.Cut(word, ":")
		if !found || !known[corev1.TaintEffect(effect)] {
			return nil, fmt.Errorf("invalid taint spec %q: the effect must be one of %v", word, slices.Sorted(maps.Keys(known)))
		}
		key, value, _ := strings.Cut(subject, "=")
		taints = append(taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return taints, nil
}
