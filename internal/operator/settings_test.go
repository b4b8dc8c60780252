// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmhealth"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

const cloudConfig = `clusters:
  - region: home
    url: https://127.0.0.1:8006
    token_id: kubernetes@pve!karpenter
    token_secret: 11111111-2222-3333-4444-555555555555
`

// file writes a file for one test.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// quiet keeps the environment of whoever runs the tests out of them.
func quiet(t *testing.T) {
	t.Helper()
	for _, option := range operator.OptionTable() {
		t.Setenv(option.Env, "")
	}
}

// settingCase is one setting: a value for it, where it ends, and values that are refused.
type settingCase struct {
	value string
	want  any
	get   func(*operator.Options) any
	bad   map[string]string
}

func settingCases() map[string]settingCase {
	duration := func(get func(*operator.Options) time.Duration, tooShort string) settingCase {
		return settingCase{
			value: "7m", want: 7 * time.Minute, get: func(o *operator.Options) any { return get(o) },
			bad: map[string]string{"soon": "want a duration of at least", tooShort: "want a duration of at least"},
		}
	}
	price := func(get func(*operator.Options) float64) settingCase {
		return settingCase{
			value: "0.5", want: 0.5, get: func(o *operator.Options) any { return get(o) },
			bad: map[string]string{"cheap": "want a number from 0", "-1": "want a number from 0", "NaN": "want a number from 0", "+Inf": "want a number from 0"},
		}
	}
	vmid := map[string]string{"many": "want a whole number", "99": "from 100 to 999999999", "1.5": "want a whole number"}
	return map[string]settingCase{
		"SYSTEM_NAMESPACE": {value: "infra", want: "infra", get: func(o *operator.Options) any { return o.SystemNamespace }},
		"NODE_POLICY":      {value: "simple", want: "simple", get: func(o *operator.Options) any { return o.NodePolicy }, bad: map[string]string{"clever": "want one of simple"}},
		"PROXMOX_VMID":     {value: "30000", want: 30000, get: func(o *operator.Options) any { return o.VMIDFrom }, bad: vmid},
		"PROXMOX_VMID_MAX": {value: "40000", want: 40000, get: func(o *operator.Options) any { return o.VMIDTo }, bad: vmid},
		"VM_MEMORY_OVERHEAD_PERCENT": {value: "0.1", want: 0.1, get: func(o *operator.Options) any { return o.VMMemoryOverheadPercent },
			bad: map[string]string{"7.5": "0.075", "-0.1": "0.075", "NaN": "0.075", "some": "0.075"}},
		"PROXMOX_TEMPLATE_VMID":     {value: "3000", want: 3000, get: func(o *operator.Options) any { return o.TemplateVMIDs.From }, bad: vmid},
		"PROXMOX_TEMPLATE_VMID_MAX": {value: "4000", want: 4000, get: func(o *operator.Options) any { return o.TemplateVMIDs.To }, bad: vmid},
		"TEMPLATE_BUILDS": {value: "3", want: 3, get: func(o *operator.Options) any { return o.TemplateBuilds },
			bad: map[string]string{"0": "from 1 to 1000"}},
		"TEMPLATE_GRACE": duration(func(o *operator.Options) time.Duration { return o.TemplateGrace }, "0s"),
		"PROXMOX_CLONE_SLOTS": {value: "9", want: 9, get: func(o *operator.Options) any { return o.CloneSlots },
			bad: map[string]string{"0": "from 1 to 100", "101": "from 1 to 100"}},
		"PCI_RESOURCES": {value: "gpu=nvidia.com/gpu", want: instancetype.Devices{"nvidia.com/gpu": {"gpu"}},
			get: func(o *operator.Options) any { return o.PCIResources }, bad: map[string]string{"gpu": "want <PCI mapping>=<resource>", "gpu=cpu": "want <PCI mapping>"}},
		"PRICE_PER_VCPU":   price(func(o *operator.Options) float64 { return o.Pricing.PerVCPU }),
		"PRICE_PER_GB":     price(func(o *operator.Options) float64 { return o.Pricing.PerGB }),
		"PRICE_PER_NODE":   price(func(o *operator.Options) float64 { return o.Pricing.PerNode }),
		"PRICE_PER_DEVICE": price(func(o *operator.Options) float64 { return o.Pricing.PerDevice }),
		"VOLUME_ATTACHMENT_LIMITS": {value: "a=1,b=2", want: map[string]int{"a": 1, "b": 2},
			get: func(o *operator.Options) any { return o.VolumeLimits }, bad: map[string]string{"24": "want <CSI driver>=<number>", "a=-1": "want <CSI driver>"}},
		"HOST_DRIFT_AFTER": duration(func(o *operator.Options) time.Duration { return o.HostDriftAfter }, "-1s"),
		"ORPHAN_POLICY": {value: "report", want: garbagecollection.PolicyReport, get: func(o *operator.Options) any { return o.Orphans.Policy },
			bad: map[string]string{"shred": "want one of remove, report"}},
		"PROXMOX_POLL_INTERVAL": duration(func(o *operator.Options) time.Duration { return o.PollInterval }, "50ms"),
		"PROXMOX_TASK_TIMEOUT":  duration(func(o *operator.Options) time.Duration { return o.TaskTimeout }, "0s"),
		"LAUNCH_RETRY_TIMEOUT":  duration(func(o *operator.Options) time.Duration { return o.LaunchRetryTimeout }, "-1m"),
		"JOIN_TOKEN_TTL":        duration(func(o *operator.Options) time.Duration { return o.JoinTokenTTL }, "59s"),
		"SHUTDOWN_TIMEOUT":      duration(func(o *operator.Options) time.Duration { return o.ShutdownTimeout }, "-1s"),
		"HOST_REMOVED_AFTER":    duration(func(o *operator.Options) time.Duration { return o.HostRemovedAfter }, "0s"),
		"MIGRATED_DRIFT_AFTER":  duration(func(o *operator.Options) time.Duration { return o.MigratedDriftAfter }, "-1s"),
		"ORPHAN_GRACE":          duration(func(o *operator.Options) time.Duration { return o.Orphans.GracePeriod }, "0s"),
		"ORPHAN_SWEEP_INTERVAL": duration(func(o *operator.Options) time.Duration { return o.Orphans.SweepInterval }, "0s"),
		"ORPHAN_DELETION_MAX_FRACTION": {value: "0.2", want: 0.2, get: func(o *operator.Options) any { return o.Orphans.MaxFraction },
			bad: map[string]string{"20": "from 0 to 1", "NaN": "from 0 to 1"}},
		"PROXMOX_DIAL_TIMEOUT":       duration(func(o *operator.Options) time.Duration { return o.DialTimeout }, "0s"),
		"PROXMOX_RESPONSE_TIMEOUT":   duration(func(o *operator.Options) time.Duration { return o.ResponseTimeout }, "0s"),
		"CLONE_SLOW_AFTER":           duration(func(o *operator.Options) time.Duration { return o.SlowClone }, "0s"),
		"CLONE_REFUSE_AFTER":         duration(func(o *operator.Options) time.Duration { return o.TooSlowClone }, "0s"),
		"LAUNCH_FAILURE_BACKOFF":     duration(func(o *operator.Options) time.Duration { return o.FailureBackoff.Initial }, "0s"),
		"LAUNCH_FAILURE_BACKOFF_MAX": duration(func(o *operator.Options) time.Duration { return o.FailureBackoff.Max }, "0s"),
		"STATIC_CAPACITY_TIMEOUT":    duration(func(o *operator.Options) time.Duration { return o.StaticCapacityTimeout }, "0s"),
		"OPERATION_TIMEOUT":          duration(func(o *operator.Options) time.Duration { return o.OperationTimeout }, "0s"),
		"RESTART_BACKOFF":            duration(func(o *operator.Options) time.Duration { return o.Restarts.Backoff }, "0s"),
		"RESTART_LIMIT": {value: "2", want: 2, get: func(o *operator.Options) any { return o.Restarts.Limit },
			bad: map[string]string{"0": "from 1 to 10", "11": "from 1 to 10"}},
		"REPAIR_UNREADY_TOLERATION": duration(func(o *operator.Options) time.Duration { return o.Repair.Unready }, "0s"),
		"REPAIR_REQUEST_TOLERATION": duration(func(o *operator.Options) time.Duration { return o.Repair.Requested }, "0s"),
		"REPAIR_DRAIN_TIMEOUT":      duration(func(o *operator.Options) time.Duration { return o.Repair.Drain }, "0s"),
	}
}

// files are the settings that name files: TestFilesAreReadBeforeAnythingRuns has them.
var files = map[string]bool{"CLOUD_CONFIG": true, "INSTANCE_TYPES_FILE": true, "NODE_SETTING_FILE": true}

func TestEverySettingIsReadFromItsVariableAndItsFlag(t *testing.T) {
	config := file(t, "cloud.yaml", cloudConfig)
	for _, option := range operator.OptionTable() {
		if files[option.Env] {
			continue
		}
		t.Run(option.Env, func(t *testing.T) {
			g := NewWithT(t)
			c, ok := settingCases()[option.Env]
			g.Expect(ok).To(BeTrue(), "a setting without a test: add it to settingCases")
			quiet(t)
			t.Setenv("CLOUD_CONFIG", config)

			t.Setenv(option.Env, c.value)
			settings, err := operator.Load(nil)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.get(settings.Options)).To(Equal(c.want))
			for bad, says := range c.bad {
				t.Setenv(option.Env, bad)
				_, err := operator.Load(nil)
				expectLine(g, err, option.Env, bad, says)
			}
			t.Setenv(option.Env, "")
			settings, err = operator.Load(nil)
			g.Expect(err).NotTo(HaveOccurred(), "an empty variable is no variable")
			if option.Flag == "" {
				return
			}
			if option.Default != "" && option.Default != c.value {
				g.Expect(c.get(settings.Options)).NotTo(Equal(c.want), "the test's value must not be the default")
				t.Setenv(option.Env, option.Default)
			}
			settings, err = operator.Load([]string{"--" + option.Flag, c.value})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.get(settings.Options)).To(Equal(c.want), "a flag wins over its variable")
			for bad, says := range c.bad {
				_, err := operator.Load([]string{"--" + option.Flag + "=" + bad})
				expectLine(g, err, option.Flag, bad, says)
			}
		})
	}
}

// expectLine: one line that says all of this.
func expectLine(g *WithT, err error, says ...string) {
	g.Expect(err).To(HaveOccurred())
	g.Expect(err.Error()).NotTo(ContainSubstring("\n"))
	for _, part := range says {
		g.Expect(err.Error()).To(ContainSubstring(part))
	}
}

func TestTheDefaultsAreGoodAndHelpful(t *testing.T) {
	quiet(t)
	g := NewWithT(t)
	settings, err := operator.Load([]string{"--cloud-config", file(t, "cloud.yaml", cloudConfig)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(settings.Cloud.Clusters).To(ConsistOf(HaveField("Region", "home")))
	g.Expect(settings.Options.SystemNamespace).To(Equal("kube-system"))
	g.Expect(settings.Options.VMIDFrom).To(Equal(20000))
	g.Expect(settings.Options.VMIDTo).To(Equal(99999))
	g.Expect(settings.Options.Orphans).To(Equal(garbagecollection.DefaultRules()))
	g.Expect(settings.Options.FailureBackoff).To(Equal(launch.DefaultFailureBackoff()))
	g.Expect(settings.Options.Restarts).To(Equal(vmhealth.DefaultRestartPolicy()))
	g.Expect(settings.Options.Repair).To(Equal(cloudprovider.DefaultRepairTolerations()))
	g.Expect(settings.Options.Instances()).To(Equal(instance.DefaultSettings()), "what tests run with is what is documented")
	g.Expect(settings.Options.Templates()).To(Equal(template.DefaultSettings()))
	seen := map[string]bool{}
	for _, option := range operator.OptionTable() {
		g.Expect(option.Help).To(HaveSuffix("."), option.Env)
		g.Expect(seen[option.Env] || seen[option.Flag] && option.Flag != "").To(BeFalse(), option.Env+" is there twice")
		seen[option.Env], seen[option.Flag] = true, true
		g.Expect(option.Flag == "" || strings.ToUpper(strings.ReplaceAll(option.Flag, "-", "_")) == option.Env).To(BeTrue(), option.Env)
	}
}

func TestTheVersionNamesTheKarpenterInside(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(operator.Version()).To(MatchRegexp(`^karpenter-provider-proxmox \S+ \(Karpenter \S+, go1\.\S+\)$`))
}

func TestSettingsThatContradictEachOther(t *testing.T) {
	config := file(t, "cloud.yaml", cloudConfig)
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		says []string
	}{
		"no cloud config":          {says: []string{"--cloud-config", "CLOUD_CONFIG", "is empty"}},
		"templates upside down":    {args: []string{"--cloud-config", config, "--proxmox-template-vmid", "5000", "--proxmox-template-vmid-max", "4000"}, says: []string{"PROXMOX_TEMPLATE_VMID_MAX", "4000", "5000"}},
		"range upside down":        {args: []string{"--cloud-config", config, "--proxmox-vmid", "5000", "--proxmox-vmid-max", "4000"}, says: []string{"PROXMOX_VMID_MAX", "4000", "5000"}},
		"refused before warned":    {args: []string{"--cloud-config", config, "--clone-refuse-after", "3m"}, says: []string{"CLONE_REFUSE_AFTER", "3m0s", "5m0s"}},
		"longest pause is shorter": {args: []string{"--cloud-config", config, "--launch-failure-backoff-max", "1m"}, says: []string{"LAUNCH_FAILURE_BACKOFF_MAX", "1m0s", "3m0s"}},
		"unknown flag":             {args: []string{"--cloud-config", config, "--no-such-flag"}, says: []string{"no-such-flag", "--help"}},
		"stray word":               {args: []string{"--cloud-config", config, "start"}, says: []string{`"start"`, "--help"}},
		"two bad variables":        {args: []string{"--cloud-config", config}, env: map[string]string{"PROXMOX_VMID": "x", "ORPHAN_GRACE": "y"}, says: []string{"PROXMOX_VMID", "ORPHAN_GRACE"}},
		"bad feature gate":         {args: []string{"--cloud-config", config, "--feature-gates", "NodeRepair=maybe"}, says: []string{"NodeRepair"}},
	} {
		t.Run(name, func(t *testing.T) {
			quiet(t)
			for key, value := range c.env {
				t.Setenv(key, value)
			}
			_, err := operator.Load(c.args)
			expectLine(NewWithT(t), err, c.says...)
		})
	}
}

func TestFilesAreReadBeforeAnythingRuns(t *testing.T) {
	good := file(t, "cloud.yaml", cloudConfig)
	types := file(t, "types.json", `[{"name": "big", "capacity": {"cpu": "4", "memory": "8Gi"}}]`)
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"cloud config missing":        {[]string{"--cloud-config", "/nowhere/cloud.yaml"}, []string{"/nowhere/cloud.yaml", "does not exist"}},
		"cloud config bad":            {[]string{"--cloud-config", file(t, "cloud.yaml", strings.Replace(cloudConfig, "url:", "adress:", 1))}, []string{"clusters[0].adress", "unknown field"}},
		"node settings missing":       {[]string{"--cloud-config", good, "--node-setting-file", "/nowhere/hosts.json"}, []string{"/nowhere/hosts.json"}},
		"node settings bad":           {[]string{"--cloud-config", good, "--node-setting-file", file(t, "hosts.json", "{")}, []string{"hosts.json"}},
		"instance types missing":      {[]string{"--cloud-config", good, "--instance-types-file", "/nowhere/types.json"}, []string{"/nowhere/types.json"}},
		"instance types not a list":   {[]string{"--cloud-config", good, "--instance-types-file", file(t, "types.json", `{"name": 7}`)}, []string{"types.json"}},
		"instance types without name": {[]string{"--cloud-config", good, "--instance-types-file", file(t, "types.json", `[{}]`)}, []string{"types.json", "name"}},
	} {
		t.Run(name, func(t *testing.T) {
			quiet(t)
			_, err := operator.Load(c.args)
			expectLine(NewWithT(t), err, c.says...)
			NewWithT(t).Expect(err.Error()).NotTo(ContainSubstring("11111111-2222"), "the secret is in the message")
		})
	}
	t.Run("an own catalogue replaces the built-in one", func(t *testing.T) {
		quiet(t)
		g := NewWithT(t)
		t.Setenv("CLOUD_CONFIG", good)
		t.Setenv("INSTANCE_TYPES_FILE", types)
		settings, err := operator.Load(nil)
		g.Expect(err).NotTo(HaveOccurred())
		_, ok := settings.Catalog.Get("big")
		g.Expect(ok).To(BeTrue())
		_, ok = settings.Catalog.Get("t1.2VCPU-6GB")
		g.Expect(ok).To(BeFalse())
	})
}
