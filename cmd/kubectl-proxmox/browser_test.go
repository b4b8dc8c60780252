// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	tea "charm.land/bubbletea/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// TestBrowser opens the web page in headless Chromium, through the proxy of ui. With SCREENSHOTS it also writes the
// screenshots of the documentation to that directory. "make screenshots" runs it.
func TestBrowser(t *testing.T) {
	t.Parallel()
	chromium := os.Getenv("CHROMIUM")
	if chromium == "" {
		t.Skip("CHROMIUM is not set: there is no browser, so this is skipped; run \"make screenshots\"")
	}
	sample := populatedFleet(t)
	w := testenv.NewWithAPIServer(t, testenv.NeverPolled())
	address := startUI(w, w.Name, func(context.Context) (fleet.Map, error) { return sample, nil })
	dom := browse(w, chromium, "--dump-dom", address)
	w.Expect(dom).To(And(
		ContainSubstring("3 hosts · 5 VMs"), ContainSubstring(`<td class="ok">Ready</td>`), ContainSubstring(`<rect class="vms"`),
		ContainSubstring("default/report-0"), ContainSubstring("no instance type has topology.kubernetes.io/zone In [pve4] (valid values: pve1, pve2, pve3)"), ContainSubstring("NoHostFits"), ContainSubstring("Started"),
	))
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	w.Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	browse(w, chromium, "--screenshot="+filepath.Join(dir, "web-page.png"), "--window-size=1200,1640", address)
	file := filepath.Join(t.TempDir(), "top.html")
	w.Expect(os.WriteFile(file, []byte(topHTML(sample)), 0o600)).To(Succeed())
	browse(w, chromium, "--screenshot="+filepath.Join(dir, "top.png"), "--window-size=1300,560", "file://"+file)
	for _, name := range []string{"web-page.png", "top.png"} {
		compress(w, filepath.Join(dir, name))
	}
}

// compress reduces a picture to its 256 most frequent colors.
func compress(w *testenv.Env, path string) {
	content, err := os.ReadFile(path)
	w.Expect(err).NotTo(HaveOccurred())
	picture, err := png.Decode(bytes.NewReader(content))
	w.Expect(err).NotTo(HaveOccurred())
	counts := map[color.Color]int{}
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			counts[picture.At(x, y)]++
		}
	}
	colors := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] })
	reduced := image.NewPaletted(picture.Bounds(), colors[:min(len(colors), 256)])
	draw.Draw(reduced, reduced.Bounds(), picture, image.Point{}, draw.Src)
	var out bytes.Buffer
	w.Expect((&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, reduced)).To(Succeed())
	w.Expect(out.Len()).To(BeNumerically("<", 150_000), path)
	w.Expect(os.WriteFile(path, out.Bytes(), 0o644)).To(Succeed())
}

func browse(w *testenv.Env, chromium string, args ...string) string {
	w.T.Helper()
	command := exec.CommandContext(w.T.Context(), chromium, append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + w.T.TempDir(),
	}, args...)...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	w.Expect(err).NotTo(HaveOccurred())
	return string(out)
}

// populatedFleet returns a map of three hosts with the objects of populate.
func populatedFleet(t *testing.T) (sample fleet.Map) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newEnv(t, testenv.Hosts(3))
		w.Name = metav1.NamespaceDefault
		for _, o := range testenv.BootObjects(w.Name) {
			w.Create(o)
		}
		populate(w)
		source, err := newFleetSource(t.Context(), w.Kube, &view{inventory: w.Inventory, settings: operator.Settings{Options: operator.DefaultOptions()}})
		w.Expect(err).NotTo(HaveOccurred())
		sample, err = source.read(t.Context())
		w.Expect(err).NotTo(HaveOccurred())
	})
	return sample
}

// populate creates five VMs in two NodePools with pods, and a pending pod.
func populate(w *testenv.Env) {
	class := w.Class()
	for _, name := range []string{"default", "batch"} {
		w.Pool(class, func(p *karpv1.NodePool) { p.Name = name })
	}
	for i := range 5 {
		claim := w.Launched(fmt.Sprintf("default-%d", i), class, func(c *karpv1.NodeClaim) {
			c.Labels[karpv1.NodePoolLabelKey] = []string{"default", "default", "batch"}[i%3]
		})
		createLaunched(w, claim)
		node := w.Node(claim)
		if i == 4 {
			continue // it joins
		}
		setNodeReady(w, node, corev1.ConditionTrue)
		setConditions(w, claim, karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized)
		for n := range i + 1 {
			createPod(w, fmt.Sprintf("web-%d-%d", i, n), claim.Name)
		}
	}
	createRefusal(w, createPod(w, "report-0", ""), "No node can be created for this pod: nodepool batch: no host is allowed for this NodeClaim: "+
		"no instance type has topology.kubernetes.io/zone In [pve4] (valid values: pve1, pve2, pve3)")
	template := w.Template()
	template.Status.Zones = []string{"region-1/pve1/9000", "region-1/pve2/9001", "region-1/pve3/9002"}
	setConditions(w, template, v1alpha1.ConditionTemplateReady)
}

// createPod creates a pod that is ready on a Node, or one that waits for a Node.
func createPod(w *testenv.Env, name, node string) *corev1.Pod {
	pod := w.PendingPod(name, "500m", func(p *corev1.Pod) { p.Spec.NodeName = node })
	if node != "" {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		w.Expect(w.Kube.Status().Update(w.T.Context(), pod)).To(Succeed())
	}
	return pod
}

// topHTML returns the terminal view as an HTML page.
func topHTML(m fleet.Map) string {
	model := press(newTopModel(nil, topOptions{order: "name"}), tea.WindowSizeMsg{Width: 150, Height: 28}, fleetMsg{fleet: m}, "down", "down")
	colors := map[terminal.Style]string{
		terminal.Bold: "font-weight:bold", terminal.Dim: "color:#8b949e", terminal.Red: "color:#ff7b72", terminal.Green: "color:#7ee787",
		terminal.Yellow: "color:#e3b341", terminal.Blue: "color:#79c0ff", terminal.Cyan: "color:#a5d6ff", terminal.Reverse: "background:#30363d",
	}
	var out strings.Builder
	out.WriteString(`<meta charset="utf-8"><body style="background:#0d1117;color:#e6edf3;margin:12px"><pre style="font:13px/1.35 'DejaVu Sans Mono',monospace">`)
	for _, line := range model.lines() {
		for _, span := range line {
			fmt.Fprintf(&out, `<span style="%s">%s</span>`, colors[span.Style], html.EscapeString(span.Text))
		}
		out.WriteString("\n")
	}
	return out.String()
}
