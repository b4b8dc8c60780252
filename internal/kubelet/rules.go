// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// Defaults of the kubelet that values are compared with.
const (
	defaultImageGCHigh = 85
	defaultImageGCLow  = 80

	defaultImageMinimumGCAge = 2 * time.Minute

	defaultEnforcement = "pods" // of enforceNodeAllocatable
)

// rules collects problems.
type rules []string

// oneOf checks a text that is set.
func (r *rules) oneOf(field, found string, allowed ...string) {
	if found != "" && !slices.Contains(allowed, found) {
		*r = append(*r, problem(field, fmt.Sprintf("%q", found), "want one of "+strings.Join(allowed, ", ")))
	}
}

// between checks a number.
func (r *rules) between(field string, found, lowest, highest int64) {
	if found < lowest || found > highest {
		*r = append(*r, problem(field, fmt.Sprint(found), fmt.Sprintf("want a number from %d to %d", lowest, highest)))
	}
}

// optional is between for a number that may be unset.
func (r *rules) optional(field string, found *int32, lowest, highest int64) {
	if found != nil {
		r.between(field, int64(*found), lowest, highest)
	}
}

// duration checks a duration that may be unset.
func (r *rules) duration(field string, found *metav1.Duration, lowest, highest time.Duration) {
	if found != nil && found.Duration != 0 && (found.Duration < lowest || found.Duration > highest) {
		*r = append(*r, problem(field, found.Duration.String(), fmt.Sprintf("want a duration from %s to %s", lowest, highest)))
	}
}

func (r *rules) require(ok bool, field string, found any, want string) {
	if !ok {
		*r = append(*r, problem(field, fmt.Sprint(found), want))
	}
}

const (
	maxInt32 = 1<<31 - 1
	// year is an upper limit for durations: longer ones are typos.
	year = 365 * 24 * time.Hour
)

// checkRules returns the problems for which a kubelet does not start.
func checkRules(k *kubeletconfig.KubeletConfiguration) []string {
	var r rules
	r.checkTexts(k)
	r.checkNumbers(k)
	r.checkDurations(k)
	r.checkImageGC(k)
	r.checkEviction(k)
	r.checkCgroups(k)
	r.require(!k.RunOnce, "runOnce", k.RunOnce, "the kubelet would exit: remove it")
	r.require(k.ReservedSystemCPUs == "" || k.SystemReservedCgroup == "" && k.KubeReservedCgroup == "", "reservedSystemCPUs", k.ReservedSystemCPUs,
		"it cannot be combined with systemReservedCgroup or kubeReservedCgroup")
	_, err := ReservedCPUs(*k)
	r.require(err == nil, "reservedSystemCPUs", fmt.Sprintf("%q", k.ReservedSystemCPUs), "want a list of CPUs such as 0-1,3")
	return r
}

func (r *rules) checkTexts(k *kubeletconfig.KubeletConfiguration) {
	r.oneOf("authorization.mode", string(k.Authorization.Mode), "AlwaysAllow", "Webhook")
	r.oneOf("cgroupDriver", k.CgroupDriver, "cgroupfs", "systemd")
	r.oneOf("configMapAndSecretChangeDetectionStrategy", string(k.ConfigMapAndSecretChangeDetectionStrategy), "Get", "Cache", "Watch")
	r.oneOf("cpuManagerPolicy", k.CPUManagerPolicy, "none", "static")
	r.oneOf("hairpinMode", k.HairpinMode, "promiscuous-bridge", "hairpin-veth", "none")
	r.oneOf("imagePullCredentialsVerificationPolicy", string(k.ImagePullCredentialsVerificationPolicy),
		"NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify")
	r.oneOf("logging.format", k.Logging.Format, "text", "json")
	r.oneOf("memoryManagerPolicy", k.MemoryManagerPolicy, "None", "Static")
	r.oneOf("memoryReservationPolicy", string(k.MemoryReservationPolicy), "None", "TieredReservation")
	r.oneOf("memorySwap.swapBehavior", k.MemorySwap.SwapBehavior, "NoSwap", "LimitedSwap")
	r.oneOf("topologyManagerPolicy", k.TopologyManagerPolicy, "none", "best-effort", "restricted", "single-numa-node")
	r.oneOf("topologyManagerScope", k.TopologyManagerScope, "container", "pod")
	r.require(k.ContainerLogMaxSize == "" || plainQuantity.MatchString(k.ContainerLogMaxSize), "containerLogMaxSize", fmt.Sprintf("%q", k.ContainerLogMaxSize), "want a quantity such as 10Mi")
}

func (r *rules) checkNumbers(k *kubeletconfig.KubeletConfiguration) {
	r.optional("containerLogMaxFiles", k.ContainerLogMaxFiles, 2, maxInt32)
	r.optional("containerLogMaxWorkers", k.ContainerLogMaxWorkers, 1, maxInt32)
	r.between("eventBurst", int64(k.EventBurst), 0, maxInt32)
	r.optional("eventRecordQPS", k.EventRecordQPS, 0, maxInt32)
	r.optional("healthzPort", k.HealthzPort, 0, 65535)
	r.optional("iptablesDropBit", k.IPTablesDropBit, 0, 31)
	r.optional("iptablesMasqueradeBit", k.IPTablesMasqueradeBit, 0, 31)
	r.between("kubeAPIBurst", int64(k.KubeAPIBurst), 0, maxInt32)
	r.optional("kubeAPIQPS", k.KubeAPIQPS, 0, maxInt32)
	r.between("maxOpenFiles", k.MaxOpenFiles, 0, 1<<62)
	r.optional("maxParallelImagePulls", k.MaxParallelImagePulls, 1, maxInt32)
	r.between("nodeLeaseDurationSeconds", int64(k.NodeLeaseDurationSeconds), 0, maxInt32)
	r.optional("nodeStatusMaxImages", k.NodeStatusMaxImages, -1, maxInt32)
	r.optional("oomScoreAdj", k.OOMScoreAdj, -1000, 1000)
	r.between("podsPerCore", int64(k.PodsPerCore), 0, maxInt32)
	r.between("port", int64(k.Port), 0, 65535)
	r.between("readOnlyPort", int64(k.ReadOnlyPort), 0, 65535)
	r.between("registryBurst", int64(k.RegistryBurst), 0, maxInt32)
	r.optional("registryPullQPS", k.RegistryPullQPS, 0, maxInt32)
	if factor := k.MemoryThrottlingFactor; factor != nil {
		r.require(*factor > 0 && *factor <= 1, "memoryThrottlingFactor", *factor, "want a number above 0, at most 1")
	}
	if pulls := k.MaxParallelImagePulls; pulls != nil && *pulls > 1 {
		r.require(k.SerializeImagePulls != nil && !*k.SerializeImagePulls, "maxParallelImagePulls", *pulls, "more than 1 needs serializeImagePulls: false")
	}
}

func (r *rules) checkDurations(k *kubeletconfig.KubeletConfiguration) {
	r.duration("containerLogMonitorInterval", k.ContainerLogMonitorInterval, 3*time.Second, year)
	r.duration("cpuCFSQuotaPeriod", k.CPUCFSQuotaPeriod, time.Millisecond, time.Second)
	r.duration("crashLoopBackOff.maxContainerRestartPeriod", k.CrashLoopBackOff.MaxContainerRestartPeriod, time.Second, 5*time.Minute)
	r.duration("imageMinimumGCAge", &k.ImageMinimumGCAge, 0, year)
	r.duration("imageMaximumGCAge", &k.ImageMaximumGCAge, 0, year)
	minimumAge := cmp.Or(k.ImageMinimumGCAge.Duration, defaultImageMinimumGCAge)
	r.require(k.ImageMaximumGCAge.Duration <= 0 || k.ImageMaximumGCAge.Duration > minimumAge, "imageMaximumGCAge", k.ImageMaximumGCAge.Duration,
		fmt.Sprintf("want 0, or more than imageMinimumGCAge, %s (default: %s)", minimumAge, defaultImageMinimumGCAge))
	r.duration("shutdownGracePeriod", &k.ShutdownGracePeriod, time.Second, year)
	r.duration("shutdownGracePeriodCriticalPods", &k.ShutdownGracePeriodCriticalPods, time.Second, year)
	r.require(k.ShutdownGracePeriodCriticalPods.Duration <= k.ShutdownGracePeriod.Duration, "shutdownGracePeriodCriticalPods", k.ShutdownGracePeriodCriticalPods.Duration,
		fmt.Sprintf("want at most shutdownGracePeriod, %s", k.ShutdownGracePeriod.Duration))
	r.require(len(k.ShutdownGracePeriodByPodPriority) == 0 || k.ShutdownGracePeriod.Duration == 0, "shutdownGracePeriodByPodPriority",
		fmt.Sprintf("%d entries", len(k.ShutdownGracePeriodByPodPriority)), "it cannot be combined with shutdownGracePeriod")
}

func (r *rules) checkImageGC(k *kubeletconfig.KubeletConfiguration) {
	high, low := int32(defaultImageGCHigh), int32(defaultImageGCLow)
	if k.ImageGCHighThresholdPercent != nil {
		high = *k.ImageGCHighThresholdPercent
	}
	if k.ImageGCLowThresholdPercent != nil {
		low = *k.ImageGCLowThresholdPercent
	}
	r.between("imageGCHighThresholdPercent", int64(high), 0, 100)
	r.between("imageGCLowThresholdPercent", int64(low), 0, 100)
	r.require(low < high, "imageGCLowThresholdPercent", low,
		fmt.Sprintf("want less than imageGCHighThresholdPercent, %d (defaults: %d and %d)", high, defaultImageGCLow, defaultImageGCHigh))
}

// checkCgroups checks enforceNodeAllocatable and the fields that it needs.
func (r *rules) checkCgroups(k *kubeletconfig.KubeletConfiguration) {
	const field = "enforceNodeAllocatable"
	enforced := k.EnforceNodeAllocatable
	if len(enforced) == 0 { // an empty list is not written, so the kubelet uses its default
		enforced = []string{defaultEnforcement}
	}
	found := strings.Join(enforced, ", ")
	for _, item := range enforced {
		r.oneOf(field, item, "none", "pods", "system-reserved", "system-reserved-compressible", "kube-reserved", "kube-reserved-compressible")
	}
	for _, reserved := range []struct{ item, cgroupField, cgroup string }{
		{"kube-reserved", "kubeReservedCgroup", k.KubeReservedCgroup},
		{"system-reserved", "systemReservedCgroup", k.SystemReservedCgroup},
	} {
		compressible := reserved.item + "-compressible"
		for _, item := range []string{reserved.item, compressible} {
			r.require(reserved.cgroup != "" || !slices.Contains(enforced, item), field, found, item+" needs "+reserved.cgroupField+", which is not set")
		}
		r.require(!slices.Contains(enforced, reserved.item) || !slices.Contains(enforced, compressible), field, found, reserved.item+" cannot be combined with "+compressible)
	}
	r.require(len(enforced) == 1 || !slices.Contains(enforced, "none"), field, found, "none cannot be combined with others")
	r.require(len(slices.Compact(slices.Sorted(slices.Values(enforced)))) == len(enforced), field, found, "want each only once")
	r.require(k.CgroupsPerQOS == nil || *k.CgroupsPerQOS || found == "none", "cgroupsPerQOS", false,
		fmt.Sprintf("it needs enforceNodeAllocatable: [none], found %s (default: %s)", found, defaultEnforcement))
	r.require(k.SystemCgroups == "" || k.CgroupRoot != "", "systemCgroups", fmt.Sprintf("%q", k.SystemCgroups), "it needs cgroupRoot, which is not set")
}

// checkEviction checks the maps beside evictionHard and evictionSoft.
func (r *rules) checkEviction(k *kubeletconfig.KubeletConfiguration) {
	allowed := keys[threshold]
	for _, signal := range slices.Sorted(maps.Keys(k.EvictionSoftGracePeriod)) {
		text := k.EvictionSoftGracePeriod[signal]
		field := "evictionSoftGracePeriod." + signal
		r.require(slices.Contains(allowed, signal), field, text, "want one of the keys "+strings.Join(allowed, ", "))
		period, err := time.ParseDuration(text)
		r.require(err == nil && period >= 0, field, fmt.Sprintf("%q", text), `want a duration such as "1m30s"`)
	}
	for _, signal := range slices.Sorted(maps.Keys(k.EvictionMinimumReclaim)) {
		field, text := "evictionMinimumReclaim."+signal, k.EvictionMinimumReclaim[signal]
		r.require(slices.Contains(allowed, signal), field, text, "want one of the keys "+strings.Join(allowed, ", "))
		r.require(plainQuantity.MatchString(text) || percentage.MatchString(text) && strings.Trim(text, "0.%") != "", field, fmt.Sprintf("%q", text),
			"want a quantity such as 100Mi, or a percentage such as 5%")
	}
}
