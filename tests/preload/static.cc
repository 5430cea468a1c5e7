#include <stdio.h>

int main() { return puts("static") < 0; }
