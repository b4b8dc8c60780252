// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command krew writes the manifest with which krew installs the kubectl plugin. It takes the
// version of a release and the checksums of its archives.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	repository = "https://github.com/karpenter-proxmox/karpenter-provider-proxmox"
	binary     = "kubectl-proxmox"
)

// manifest is krew's Plugin, as its documentation describes it.
type manifest struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       spec              `json:"spec"`
}

type spec struct {
	Version          string     `json:"version"`
	Homepage         string     `json:"homepage"`
	ShortDescription string     `json:"shortDescription"`
	Description      string     `json:"description"`
	Caveats          string     `json:"caveats"`
	Platforms        []platform `json:"platforms"`
}

type platform struct {
	Selector selector `json:"selector"`
	URI      string   `json:"uri"`
	SHA256   string   `json:"sha256"`
	Bin      string   `json:"bin"`
	Files    []file   `json:"files"`
}

type selector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

type file struct {
	From string `json:"from"`
	To   string `json:"to"`
}

func main() {
	version := flag.String("version", "", "version of the release, for example v1.2.3")
	checksums := flag.String("checksums", "", "path of the file with the SHA-256 sums of the release's archives")
	flag.Parse()
	if err := run(*version, *checksums, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(version, checksums string, out io.Writer) error {
	sums, err := os.Open(checksums) //nolint:gosec // the path is a command line argument
	if err != nil {
		return fmt.Errorf("reading the checksums: %w", err)
	}
	defer func() { _ = sums.Close() }()
	plugin, err := newManifest(version, sums)
	if err != nil {
		return err
	}
	content, err := yaml.Marshal(plugin)
	if err != nil {
		return fmt.Errorf("encoding the manifest: %w", err)
	}
	_, err = out.Write(content)
	return err
}

var (
	// semver is what krew accepts: with the v.
	semver = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
	// archive matches a line of the checksums with an archive of the plugin.
	archive = regexp.MustCompile(`^([0-9a-f]{64}) [ *](` + binary + `_\S+_(linux|darwin|windows)_(amd64|arm64)\.(?:tar\.gz|zip))$`)
)

// newManifest returns the manifest of a release.
func newManifest(version string, checksums io.Reader) (manifest, error) {
	if !semver.MatchString(version) {
		return manifest{}, fmt.Errorf("found version %q, want one such as v1.2.3", version)
	}
	m := manifest{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin", Metadata: map[string]string{"name": "proxmox"},
		Spec: spec{
			Version: version, Homepage: repository, ShortDescription: "Inspect and operate Karpenter on Proxmox VE",
			Description: "Checks Proxmox VE clusters and manifests before an installation of Karpenter,\nexplains why a pod has no VM, plans changes, lists orphans, drains hosts.\n",
			Caveats:     "For completion, link the plugin as kubectl_complete-proxmox:\n" + repository + "/blob/main/docs/kubectl-plugin.md#completion\n",
		},
	}
	lines := bufio.NewScanner(checksums)
	for lines.Scan() {
		match := archive.FindStringSubmatch(lines.Text())
		if match == nil || !strings.Contains(match[2], "_"+strings.TrimPrefix(version, "v")+"_") {
			continue
		}
		p := platform{
			Selector: selector{map[string]string{"os": match[3], "arch": match[4]}}, SHA256: match[1], Bin: binary,
			URI: fmt.Sprintf("%s/releases/download/%s/%s", repository, version, match[2]),
		}
		if match[3] == "windows" {
			p.Bin += ".exe"
		}
		p.Files = []file{{From: p.Bin, To: "."}, {From: "LICENSE", To: "."}}
		m.Spec.Platforms = append(m.Spec.Platforms, p)
	}
	if err := lines.Err(); err != nil {
		return manifest{}, fmt.Errorf("reading the checksums: %w", err)
	}
	if len(m.Spec.Platforms) == 0 {
		return manifest{}, errors.New("the checksums list no archive " + binary + "_VERSION_OS_ARCH.tar.gz of " + version)
	}
	return m, nil
}
