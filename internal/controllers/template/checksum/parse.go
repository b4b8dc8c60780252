// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// sum is a checksum of a file.
type sum struct{ algorithm, value string }

// algorithms are those that Proxmox verifies, by their number of hexadecimal digits.
var algorithms = map[int]string{32: "md5", 40: "sha1", 56: "sha224", 64: "sha256", 96: "sha384", 128: "sha512"}

var (
	// gnuLine is a line of sha256sum: "<hash>  <name>", or with * for a binary file.
	gnuLine = regexp.MustCompile(`^\\?([0-9a-fA-F]{32,128})[ \t]+\*?(\S.*)$`)
	// bsdLine is a line of sha256sum --tag: "SHA256 (<name>) = <hash>".
	bsdLine = regexp.MustCompile(`^([A-Za-z0-9-]+) ?\((.+)\) ?= ?([0-9a-fA-F]{32,128})$`)
	// bareLine is a file with one hash only, such as <name>.sha256.
	bareLine = regexp.MustCompile(`^[0-9a-fA-F]{32,128}$`)
)

// find returns the checksum of a file in a list of checksums. Of several algorithms it is
// the one with the most digits, unless the known checksum is still listed: an additional
// algorithm is no other image. Other lines, such as a signature, are ignored.
func find(content, name string, known sum) (sum, error) {
	var found []sum
	var listed []string
	for line := range strings.Lines(content) {
		file, s := parseLine(strings.TrimSpace(line))
		switch {
		case s.algorithm == "":
		case file == name:
			found = append(found, s)
		default:
			listed = append(listed, file)
		}
	}
	if bare := strings.TrimSpace(content); len(found) == 0 && bareLine.MatchString(bare) {
		found = []sum{newSum(bare)}
	}
	if slices.Contains(found, known) {
		found = slices.DeleteFunc(found, func(s sum) bool { return s.algorithm != known.algorithm })
	}
	slices.SortStableFunc(found, func(a, b sum) int { return cmp.Compare(len(b.value), len(a.value)) })
	switch {
	case len(found) == 0 || found[0].algorithm == "":
		return sum{}, fmt.Errorf("it lists no checksum for %q, the last part of the image's URL; %s", name, describe(listed))
	case len(found) > 1 && found[1].algorithm == found[0].algorithm && found[1].value != found[0].value:
		return sum{}, fmt.Errorf("it lists two different %s checksums for %q: %s and %s", found[0].algorithm, name, found[0].value, found[1].value)
	}
	return found[0], nil
}

// parseLine returns the file name and the checksum of a line. The algorithm is empty if
// the line contains no checksum that Proxmox can verify.
func parseLine(line string) (file string, s sum) {
	if m := bsdLine.FindStringSubmatch(line); m != nil {
		s = newSum(m[3])
		if !strings.EqualFold(strings.ReplaceAll(m[1], "-", ""), s.algorithm) {
			s = sum{} // for example BLAKE2b, which has as many digits as SHA512
		}
		return path.Base(m[2]), s
	}
	if m := gnuLine.FindStringSubmatch(line); m != nil {
		return path.Base(m[2]), newSum(m[1])
	}
	return "", sum{}
}

func newSum(value string) sum {
	return sum{algorithm: algorithms[len(value)], value: strings.ToLower(value)}
}

// maxListed is how many file names an error lists.
const maxListed = 5

// describe lists the files that have a checksum.
func describe(files []string) string {
	if len(files) == 0 {
		return "it contains no checksums of files; set the URL of a file such as SHA256SUMS"
	}
	text := "it lists " + strings.Join(files[:min(maxListed, len(files))], ", ")
	if more := len(files) - maxListed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
